"""Images: their sources, and the partitions that assign them to clients."""

from fedssl.data.cifar import Cifar10, Cifar100
from fedssl.data.class_partition import Classes, Dirichlet, Skew
from fedssl.data.fashion_mini import FashionMini
from fedssl.data.fashion_mnist import FashionMnist
from fedssl.data.feature_clusters import Clusters
from fedssl.data.folder import Folder
from fedssl.data.images import SOURCES, Dataset, Images, Source
from fedssl.data.input_shift import Rotation, Style
from fedssl.data.label_histogram import earth_movers_distance, histogram
from fedssl.data.npz import Npz
from fedssl.data.partition import PARTITIONS, Iid, Listed, Natural, Partition, Quantity
from fedssl.data.public import PUBLIC, HeldOut, Public
from fedssl.data.python_images import PythonImages, from_python, is_by_client
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
    "HeldOut",
    "Iid",
    "Images",
    "Listed",
    "Natural",
    "Npz",
    "Partition",
    "Public",
    "PythonImages",
    "Quantity",
    "Rotation",
    "Skew",
    "Source",
    "Stl10",
    "Style",
    "TinyImageNet",
    "earth_movers_distance",
    "from_python",
    "histogram",
    "is_by_client",
]
