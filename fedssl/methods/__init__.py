"""Methods, one file each, all self-supervised except `supervised`; importing this package registers
them."""

from fedssl.methods.autoencoder import Autoencoder
from fedssl.methods.barlow import Barlow
from fedssl.methods.byol import BYOL
from fedssl.methods.deepcluster import DeepCluster
from fedssl.methods.dino import DINO
from fedssl.methods.mae import MAE
from fedssl.methods.moco import MoCoV1, MoCoV2
from fedssl.methods.rotation import Rotation
from fedssl.methods.simclr import SimCLR
from fedssl.methods.simsiam import SimSiam
from fedssl.methods.supervised import Supervised
from fedssl.methods.swav import SwAV
from fedssl.methods.vicreg import VICReg

__all__ = [
    "BYOL",
    "DINO",
    "MAE",
    "Autoencoder",
    "Barlow",
    "DeepCluster",
    "MoCoV1",
    "MoCoV2",
    "Rotation",
    "SimCLR",
    "SimSiam",
    "Supervised",
    "SwAV",
    "VICReg",
]
