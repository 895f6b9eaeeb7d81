"""Methods, all but one self-supervised, one file each; importing this registers them all."""

from fedssl.methods.autoencoder import Autoencoder
from fedssl.methods.barlow import Barlow
from fedssl.methods.byol import BYOL
from fedssl.methods.moco import MoCoV1, MoCoV2
from fedssl.methods.rotation import Rotation
from fedssl.methods.simclr import SimCLR
from fedssl.methods.simsiam import SimSiam
from fedssl.methods.supervised import Supervised
from fedssl.methods.vicreg import VICReg

__all__ = [
    "BYOL",
    "Autoencoder",
    "Barlow",
    "MoCoV1",
    "MoCoV2",
    "Rotation",
    "SimCLR",
    "SimSiam",
    "Supervised",
    "VICReg",
]
