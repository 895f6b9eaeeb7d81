"""Self-supervised methods, one file each; importing this registers them all."""

from fedssl.methods.byol import BYOL
from fedssl.methods.deepcluster import DeepCluster
from fedssl.methods.dino import DINO
from fedssl.methods.mae import MAE
from fedssl.methods.moco import MoCoV1, MoCoV2
from fedssl.methods.simclr import SimCLR
from fedssl.methods.simsiam import SimSiam
from fedssl.methods.swav import SwAV

__all__ = ["BYOL", "DINO", "MAE", "DeepCluster", "MoCoV1", "MoCoV2", "SimCLR", "SimSiam", "SwAV"]
