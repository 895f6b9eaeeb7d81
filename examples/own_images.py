"""From a folder of images to a verdict and a classifier; docs/notebooks/own_images.ipynb."""

# %% [markdown]
# # From your own images to a verdict
#
# Five shops have photos of clothing. None of them may share its photos. We train one backbone on
# all of them, measure whether that was better than training alone, and use it for a classifier.
#
# The notebook takes less than a minute on two CPU cores. To use your own images, replace the folder
# `clothes` by yours.

# %%
import shlex
import subprocess
from pathlib import Path

import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import fedssl
from fedssl.data import FashionMini


def command(line: str) -> None:
    """Run a command and print its output; in Jupyter you can write `!fedssl …` instead."""
    done = subprocess.run(shlex.split(line), check=True, capture_output=True, text=True)
    print(done.stdout)


# %% [markdown]
# ## Make a folder of images
#
# The images are a part of Fashion-MNIST that comes with fedssl. Every shop has two kinds of
# clothing. The folder `test` has labelled images, one folder per kind; only they need labels.

# %%
SHOPS = ("north", "east", "south", "west", "centre")
clothes = FashionMini().read(Path("data"), print)


def save(images, count: int, folder_of) -> None:
    """Write the first images as PNG files, each into the folder for its kind."""
    for number in range(count):
        folder = Path("clothes") / folder_of(int(images.labels[number]))
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images.pixels[number, 0].numpy()).save(folder / f"{number:04}.png")


save(clothes.train, 1000, lambda kind: f"train/{SHOPS[kind // 2]}")
save(clothes.test, 1000, lambda kind: f"test/{clothes.test.classes[kind].replace('/', '-')}")

# %% [markdown]
# ## Write an experiment
#
# `fedssl new` inspects the folder and writes an experiment, with a comment for every choice.

# %%
command("fedssl new clothes")

# %%
print(Path("clothes.toml").read_text())

# %% [markdown]
# ## Look at what clients train on
#
# Each row has an image on the left and random views of it. The backbone learns that the views of an
# image belong together. They should differ in what does not matter, and keep what does.

# %%
command("fedssl views clothes.toml --out views.png")
Image.open("views.png")

# %% [markdown]
# ## Train, and read the verdict
#
# In every round each shop trains on its own images, and the server averages the models. Ten rounds
# keep this notebook short; `clothes.toml` has 40. The run is compared with an untrained backbone
# and with each shop training alone.

# %%
short = {"rounds": 10}
run = fedssl.run("clothes.toml", quiet=True, set=short)
for name, scores in run.results["table"].items():
    print(f"{name:10} kNN {scores['knn']['mean']:.1f}%  linear {scores['linear']['mean']:.1f}%")
print(run.results["verdict"]["sentence"])

# %% [markdown]
# The interval accounts for the finite number of test images. If it includes zero, these images do
# not show that training together was better.

# %%
Image.open(run.dir / "picture.png")

# %% [markdown]
# ## Use the backbone
#
# The backbone is a torch module. Here its features are the input of a classifier that learns from
# ten labelled images of each kind; the others measure it. Ten rounds on 1,000 images show the way,
# they do not make a good backbone: train longer, on more images.

# %%
backbone = run.backbone()
labels = clothes.test.labels
with torch.no_grad():
    features = backbone(clothes.test.pixels / 255)
classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
classifier.fit(features[:100], labels[:100])
print(f"{100 * classifier.score(features[100:], labels[100:]):.1f}% with 100 labels")
