"""Fine-tune an exported backbone for detection and segmentation with Mask R-CNN."""
