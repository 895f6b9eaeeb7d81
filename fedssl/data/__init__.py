"""Images, where they come from, and how they are dealt to clients."""

from fedssl.data.cifar import Cifar10, Cifar100
from fedssl.data.class_partition import Classes, Dirichlet, Skew
from fedssl.data.clusters import Clusters
from fedssl.data.embedded import FashionMini
from fedssl.data.folder import Folder
from fedssl.data.given import Given, from_python
from fedssl.data.idx import FashionMnist
from fedssl.data.images import SOURCES, Dataset, Images, Source
from fedssl.data.npz import Npz
from fedssl.data.partition import PARTITIONS, Iid, Listed, Natural, Partition, Quantity
from fedssl.data.public import PUBLIC, HeldOut, Public
from fedssl.data.shift import Rotation, Style
from fedssl.data.spread import draw, earth_movers_distance, histogram
from fedssl.data.stl10 import Stl10
from fedssl.data.tiny_imagenet import TinyImageNet

__all__ = [
    "PARTITIONS",
    "PUBLIC",
    "SOURCES",
    "Cifar10",
    "Cifar100",
    "Classes",
    "Clusters",
    "Dataset",
    "Dirichlet",
    "FashionMini",
    "FashionMnist",
    "Folder",
    "Given",
    "HeldOut",
    "Iid",
    "Images",
    "Listed",
    "Natural",
    "Npz",
    "Partition",
    "Public",
    "Quantity",
    "Rotation",
    "Skew",
    "Source",
    "Stl10",
    "Style",
    "TinyImageNet",
    "draw",
    "earth_movers_distance",
    "from_python",
    "histogram",
]
