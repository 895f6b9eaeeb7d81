"""Fine-tuning an exported backbone for another task: detection and segmentation with Mask R-CNN."""
