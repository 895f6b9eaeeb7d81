"""Descriptions for make_reference.py that are not comments in the source."""

MEANINGS = {
    "seed": "seed of all random streams of the run",
    "rounds": "number of training rounds",
    "clients": "number of clients that the partition assigns images to; 0: the number in the data "
    "(`natural`) or the file (`listed`); other partitions need a number",
    "data.mean": "mean per channel of pixels / 255; none: pixels are not normalised",
    "data.holdout": "number of training images, drawn at random, that replace the test images, to "
    "[choose settings](../how-to/choose-settings.md)",
    "data.leave_out": "fraction of the training images, balanced over classes and drawn with the "
    "seed, that is assigned to no client: for [fine-tuning](../how-to/evaluate.md#semi)",
    "data.folder.bad_share": "maximum fraction of a client's files (or of all) that may be "
    "unreadable; more is an error",
    "data.std": "standard deviation per channel; set together with `mean`",
    "data.folder.path": "the folder, looked up in the data directory (`--data-dir`), then in the "
    "current one",
    "data.folder.size": "side in pixels of the square that every image is scaled to",
    "data.folder.layout": "meaning of the folders directly inside; `clients-classes`: one folder "
    "per class in each client's folder; `flat`: none",
    "data.folder.channels": "1: grey, 3: RGB",
    "data.folder.background": "colour under transparent pixels, with which half-transparent ones "
    'are mixed, and of the border with `fit = "pad"`',
    "data.folder.fit": "how an image becomes a square. `crop`: its largest centred square; `pad`: "
    "all of it, with a border in the colour of `background`",
    "data.folder.test": "another folder, looked up in the same way, with one folder per class: "
    "labelled test images",
    "data.npz.path": "the archive, looked up in the data directory (`--data-dir`), then in the "
    "current one",
    "data.stl10.part": "which images to train on; only those of `train` have labels",
    "partition.quantity.shares": "each client's fraction of all images; set either this or `alpha`",
    "partition.quantity.alpha": "fractions are drawn from Dirichlet(`alpha`); small: very unequal",
    "partition.listed.path": "the JSON file, relative to the current directory; "
    "`fedssl partition --save` writes one",
    "partition.classes.per_client": "number of classes per client",
    "partition.classes.shuffled": "shuffle the classes first",
    "partition.dirichlet.alpha": "concentration; small: class distributions differ much",
    "partition.dirichlet.balanced": "all clients have the same number of images",
    "partition.dirichlet.capped": "a client that holds N/K images gets none of the next classes; "
    "excludes `balanced`",
    "partition.clusters.capped": "a client that holds N/K images gets none of the next groups; "
    "excludes `balanced`",
    "partition.skew.beta": "0: sorted by class, 1: IID",
    "method.backbone": "the network that is pre-trained; see below. `timm:NAME` is a model of timm",
    "method.stem": "first layers of a ResNet: `cifar` keeps the resolution of the images (3x3 "
    "convolution of stride 1, no max-pooling) and is initialised like torch's layers, `imagenet` "
    "reduces it to a quarter and is initialised like torchvision's; for a ViT, the patch size",
    "method.view_size": "side of the views in pixels; none: that of the images",
    "method.init": "a safetensors file, relative to the current directory, with the initial "
    "weights of the backbone; names of torchvision, timm and DINOv2 are supported",
    "method.adapters": "train low-rank adapters of the backbone of `init` instead of its weights; "
    "none: train all weights; see the table `[method.adapters]` below",
    "method.augment": "augmentation; see the table `[method.augment]` below",
    "method.byol.hidden": "width of the heads' hidden layer",
    "method.byol.dim": "width of projections and predictions",
    "method.byol.momentum": "momentum of the target: target ← momentum · target + (1 − momentum) · "
    "online, after every step",
    "method.deepcluster.hidden": "width of the projector's hidden layer",
    "method.deepcluster.dim": "width of projections",
    "method.deepcluster.temperature": "temperature of the softmax over clusters",
    "method.dino.hidden": "width of the head's two hidden layers",
    "method.dino.momentum": "momentum of the teacher, which is updated after every step",
    "method.mae.backbone": "a vision transformer",
    "method.simclr.hidden": "width of the projector's hidden layer",
    "method.simclr.dim": "width of projections",
    "method.simclr.temperature": "temperature of the softmax over similarities",
    "method.barlow.hidden": "width of the projector's hidden layers",
    "method.barlow.dim": "width of projections",
    "method.vicreg.hidden": "width of the projector's hidden layers",
    "method.vicreg.dim": "width of projections",
    "method.simsiam.hidden": "width of the heads' hidden layer",
    "method.simsiam.dim": "width of projections and predictions",
    "method.swav.hidden": "width of the projector's hidden layer",
    "method.swav.dim": "width of projections and prototypes",
    "method.swav.temperature": "temperature of the softmax over prototypes",
    "method.moco.dim": "width of projections",
    "method.moco.momentum": "momentum of the key encoder, which is updated after every step",
    "method.moco.temperature": "temperature of the softmax over similarities",
    "method.mocov1.augment": "as in `[method.augment]`, with weaker jitter",
    "method.mocov2.hidden": "width of the head's hidden layer; none: the width of the features",
    "method.mocov2.temperature": "temperature of the softmax over similarities",
    "method.augment.flip": "probability of a horizontal flip",
    "method.augment.jitter": "strengths of brightness, contrast, saturation, hue",
    "method.augment.jitter_p": "probability of the colour jitter",
    "method.augment.gray": "probability of conversion to grey",
    "method.augment.blur": "probability of a Gaussian blur",
    "method.augment.crop": "range of the crop's area as a fraction of the image's",
    "method.augment.ratio": "range of the crop's aspect ratio, width : height",
    "method.augment.blur_kernel": "size of the blur kernel, an odd number; none: about a tenth of "
    "the side",
    "method.augment.blur_sigma": "range of the blur's standard deviation in pixels",
    "algorithm.weights": "weights of clients in a server's mean: their number of images, or equal",
    "topology.star.participation": "fraction of the clients that is selected in a round, at "
    "random; at least one client",
    "train.schedule": "schedule of the learning rate over rounds; it is constant within a round. "
    "`step`: × `step_factor` at 30, 60 and 90% of the rounds",
    "train.epochs": "passes over a client's images per round",
    "train.batch": "images per step; a client with fewer trains on one smaller batch",
    "train.optimizer": "the optimizer, which is reset in every round",
    "train.lr": "learning rate at the start of the run",
    "train.momentum": "momentum of `sgd`",
    "train.weight_decay": "weight decay; decoupled with `adamw`",
    "train.client_memory": "where client memory is stored between rounds: on the device, in host "
    "memory, or in the run directory; `auto`: the first of these with space for all clients",
    "probe.k": "neighbours that vote; default: the square root of the number of labelled images, "
    "at most 200",
    "probe.temperature": "temperature of the kNN probe: votes have the weight exp(similarity / "
    "temperature)",
    "probe.epochs": "epochs of the linear probe; none: the protocol's, 200 with `fedema`",
    "probe.lr": "learning rate of the linear probe; none: the protocol's, 0.003 with `fedema`",
    "probe.batch": "batch size of the linear probe; none: the protocol's, 512 with `fedema`",
}

WORDS = {  # used instead of a class's docstring
    "data.folder": "Image files in folders. All files are read, except hidden ones. A folder that "
    "contains only `train` and `test` (or `val`) contains the two sets. "
    "See [how files are decoded](../how-to/own-images.md#how-files-are-decoded).",
    "data.given": "Images passed from Python: `fedssl.run(…, dataset=…, test=…)`.",
    "data.npz": "A NumPy archive with uint8 images `x_train` (N, H, W, C) or (N, H, W) and, "
    "optionally, `y_train`, `x_test`, `y_test`, and `owner_train` (N,), each image's client.",
}

INTRO = (
    "# Every key of an experiment\n\n"
    "<!-- Generated by docs/make_reference.py from the settings classes: edit those or the script, "
    "and run it again. -->\n\n"
    "An experiment is one TOML file, or one `fedssl.Experiment`. `fedssl recipes NAME` prints a "
    "recipe with every default filled in. To change a key, use its dotted name, such as `train.lr` "
    "or `method.augment.crop`, with `--set KEY=VALUE` on the command line or "
    '`set={"KEY": VALUE}` in Python. If the value is a table, only the keys in it change: '
    '`--set "train={lr=0.1}"`, `set={"train": {"lr": 0.1}}` and `train={"lr": 0.1}` are '
    "equivalent. Unknown keys and values out of range are rejected before any image is read. "
    "A number without an upper bound below may be at most 1,000,000,000.\n\n"
    "The keys of a table with a `name` depend on the name. `--set method=byol` is short for "
    "`--set method.name=byol`. Other keys of the table keep their values if the new choice has "
    "them, unless the values are the old choice's defaults. "
    "A key whose default is *none* is optional; without a value, it is omitted from the file.\n\n"
    "In TOML, text is in quotes, a switch is `true` or `false`, and a path with backslashes is in "
    "single quotes: `path = 'C:\\photos'`. An error in the file is shown with its line and what to "
    "write instead."
)
