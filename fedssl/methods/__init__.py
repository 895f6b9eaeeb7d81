"""Self-supervised methods, one file each; importing this registers them all."""

from fedssl.methods.barlow import Barlow
from fedssl.methods.byol import BYOL
from fedssl.methods.moco import MoCoV1, MoCoV2
from fedssl.methods.simclr import SimCLR
from fedssl.methods.simsiam import SimSiam
from fedssl.methods.vicreg import VICReg

__all__ = ["BYOL", "Barlow", "MoCoV1", "MoCoV2", "SimCLR", "SimSiam", "VICReg"]
