"""Backbones with torchvision's and timm's key names, heads, and files of weights."""

from fedssl.nets.adapters import AdapterSettings, add_adapters, merge_adapters
from fedssl.nets.backbone import BACKBONES, Backbone, PatchBackbone, Stem
from fedssl.nets.backbone_check import check_backbone
from fedssl.nets.build import build, is_own
from fedssl.nets.cnn import CNN, CNN5
from fedssl.nets.given_backbone import give_backbone, given_weights
from fedssl.nets.group_norm import GroupNorm, Norm, use_norm
from fedssl.nets.heads import expander, linear, mlp, two_layers
from fedssl.nets.norm import BatchNorm1d, BatchNorm2d
from fedssl.nets.resnet import ResNet, ResNet18, ResNet34, ResNet50
from fedssl.nets.uninitialized import uninitialized
from fedssl.nets.vit import ViT, ViTMini, ViTTiny
from fedssl.nets.weights import (
    backbone_file,
    load_backbone,
    read_weights,
    save_backbone,
    unused_tensors,
)

__all__ = [
    "BACKBONES",
    "CNN",
    "CNN5",
    "AdapterSettings",
    "Backbone",
    "BatchNorm1d",
    "BatchNorm2d",
    "GroupNorm",
    "Norm",
    "PatchBackbone",
    "ResNet",
    "ResNet18",
    "ResNet34",
    "ResNet50",
    "Stem",
    "ViT",
    "ViTMini",
    "ViTTiny",
    "add_adapters",
    "backbone_file",
    "build",
    "check_backbone",
    "expander",
    "give_backbone",
    "given_weights",
    "is_own",
    "linear",
    "load_backbone",
    "merge_adapters",
    "mlp",
    "read_weights",
    "save_backbone",
    "two_layers",
    "uninitialized",
    "unused_tensors",
    "use_norm",
]
