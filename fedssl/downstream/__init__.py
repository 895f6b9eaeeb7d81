"""Use a trained backbone: fine-tune a detector."""
