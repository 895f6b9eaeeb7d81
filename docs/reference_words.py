"""What make_reference.py has to say beyond the comments in the source."""

MEANINGS = {
    "seed": "every random stream of the run derives from it",
    "rounds": "rounds of training",
    "clients": "clients that the partition deals images to; 0: as many as the data (`natural`) or the file (`listed`) "
    "brings, other partitions need a number",
    "data.mean": "per channel, of pixels / 255; none: pixels are not normalised",
    "data.holdout": "this many training images, drawn blindly, take the place of the test images; "
    "[choose settings on them](../how-to/choose-settings.md)",
    "data.leave_out": "share of the training images, as many of each class, drawn by the seed, that no client gets: "
    "for [fine-tuning](../how-to/evaluate.md#semi)",
    "data.folder.bad_share": "largest share of a client's files (or of all) that may be unreadable; more is an error",
    "data.std": "per channel, comes with `mean`",
    "data.folder.path": "the folder, looked up in the data directory (`--data-dir`), then in the current one",
    "data.folder.size": "side of the square every image is scaled to, in pixels",
    "data.folder.layout": "what the folders directly inside stand for; `clients-classes`: a folder per class in each "
    "client's; `flat`: nothing",
    "data.folder.channels": "1: grey, 3: RGB",
    "data.folder.test": "another folder, looked up likewise, with one folder per class: labelled test images",
    "data.npz.path": "the archive, looked up in the data directory (`--data-dir`), then in the current one",
    "data.stl10.part": "which images to train on; only those of `train` have labels",
    "partition.quantity.shares": "each client's share of all images; either this or `alpha`",
    "partition.quantity.alpha": "shares are drawn from Dirichlet(`alpha`); small: very unequal",
    "partition.listed.path": "the JSON file, from the current directory; `fedssl partition --save` writes one",
    "partition.classes.per_client": "classes each client holds",
    "partition.classes.shuffled": "put the classes in a random order first",
    "partition.dirichlet.alpha": "small: clients differ much in their classes",
    "partition.dirichlet.balanced": "all clients hold equally many images",
    "partition.skew.beta": "0: sorted by class, 1: all clients alike",
    "method.backbone": "the network that is kept; see below",
    "method.stem": "how a ResNet meets its images: `cifar` keeps their resolution (3x3 convolution of stride 1, no "
    "max-pooling) and draws the first weights as torch does, `imagenet` quarters it and draws them as torchvision "
    "does; of a ViT, how many pixels make a patch",
    "method.view_size": "side of the views, in pixels; none: the images' own",
    "method.init": "a safetensors file, from the current directory, to start the backbone from; torchvision's and "
    "timm's names are known",
    "method.augment": "how views are made; the table `[method.augment]` below",
    "method.byol.hidden": "width of the heads' hidden layer",
    "method.byol.dim": "width of projections and predictions",
    "method.byol.momentum": "of the target: target ← momentum · target + (1 − momentum) · online, after every step",
    "method.deepcluster.hidden": "width of the projector's hidden layer",
    "method.deepcluster.dim": "width of projections",
    "method.deepcluster.temperature": "of the softmax over clusters",
    "method.dino.hidden": "width of the head's two hidden layers",
    "method.dino.momentum": "of the teacher, after every step",
    "method.mae.backbone": "a vision transformer",
    "method.simclr.hidden": "width of the projector's hidden layer",
    "method.simclr.dim": "width of projections",
    "method.simclr.temperature": "of the softmax over similarities",
    "method.barlow.hidden": "width of the projector's hidden layers",
    "method.barlow.dim": "width of projections",
    "method.vicreg.hidden": "width of the projector's hidden layers",
    "method.vicreg.dim": "width of projections",
    "method.simsiam.hidden": "width of the heads' hidden layer",
    "method.simsiam.dim": "width of projections and predictions",
    "method.swav.hidden": "width of the projector's hidden layer",
    "method.swav.dim": "width of projections and prototypes",
    "method.swav.temperature": "of the softmax over prototypes",
    "method.moco.dim": "width of projections",
    "method.moco.momentum": "of the key encoder, after every step",
    "method.moco.temperature": "of the softmax over similarities",
    "method.mocov1.augment": "as in `[method.augment]`, with weaker jitter",
    "method.mocov2.hidden": "width of the head's hidden layer; none: as wide as the backbone's features",
    "method.mocov2.temperature": "of the softmax over similarities",
    "method.augment.flip": "probability of a mirror image",
    "method.augment.jitter": "strengths of brightness, contrast, saturation, hue",
    "method.augment.jitter_p": "probability of the jitter",
    "method.augment.gray": "probability of turning grey",
    "method.augment.blur": "probability of a Gaussian blur",
    "method.augment.crop": "the crop's share of the image's area is drawn from here",
    "method.augment.ratio": "width : height of the crop is drawn from here",
    "method.augment.blur_kernel": "taps of the blur, an odd number; none: about a tenth of the side",
    "method.augment.blur_sigma": "the blur's standard deviation in pixels is drawn from here",
    "algorithm.weights": "how a server weighs its clients: by their number of images, or all alike",
    "topology.star.participation": "share of the clients asked in a round, drawn at random, at least one",
    "train.schedule": "of the learning rate over rounds; inside a round it is constant. `step`: × 0.3 at 30, 60 and "
    "90% of the rounds",
    "train.epochs": "passes over a client's images in a round",
    "train.batch": "images in a step; a client with fewer trains on one smaller batch",
    "train.optimizer": "begins afresh in every round",
    "train.lr": "the learning rate at the start of the run",
    "train.momentum": "of `sgd`",
    "train.weight_decay": "decoupled with `adamw`",
    "train.memory": "where what clients keep to themselves lies between their turns: on the device, in host memory, or "
    "in the run directory; `auto`: the first of these with room for all clients",
    "probe.k": "neighbours of the kNN probe",
    "probe.temperature": "of the kNN probe: votes weigh exp(similarity / temperature)",
    "probe.epochs": "of the linear probe; none: the protocol's, 200 with `fedema`",
    "probe.lr": "of the linear probe; none: the protocol's, 0.003 with `fedema`",
    "probe.batch": "of the linear probe; none: the protocol's, 512 with `fedema`",
}

WORDS = {  # in place of a class's docstring
    "data.folder": "Image files in folders; every file counts, except hidden ones. A folder that holds nothing but "
    "`train` and `test` (or `val`) holds the two sets. [How files become pixels](../how-to/own-images.md).",
    "data.given": "Images passed from Python: `fedssl.run(…, dataset=…, test=…)`.",
    "data.npz": "A NumPy archive with uint8 images `x_train` (N, H, W, C) or (N, H, W) and, where there are any, "
    "`y_train`, `x_test`, `y_test`, and `owner_train` (N,), which names each image's client.",
}

INTRO = (
    "# Every key of an experiment\n\n"
    "<!-- Made by docs/make_reference.py from the settings classes: change those or it, and run it again. -->\n\n"
    "An experiment is one TOML file, or one `fedssl.Experiment`. `fedssl recipes NAME` prints a recipe with every "
    'default filled in. A key changes with `--set KEY=VALUE` on the command line, or `set={"KEY": VALUE}` in Python, '
    "by its dotted name, such as `train.lr` or `method.augment.crop`. A table as a value changes the keys that it "
    'names and keeps the others: `--set "train={lr=0.1}"`, `set={"train": {"lr": 0.1}}` and `train={"lr": 0.1}` are '
    "the same. Unknown keys and values out of range are refused before any image is read; "
    "a number without an upper bound below may be at most 1,000,000,000.\n\n"
    "A table that has a `name` has the keys of what it names. `--set method=byol` is short for "
    "`--set method.name=byol`; of the other keys in the table, those that the new choice knows keep their values, "
    "unless these only repeat the old choice's defaults. "
    "A key whose default is *none* has no value unless you give one, and is then left out of the file."
)
