"""Use a trained backbone: export, embed, search, classify, and fine-tune a detector."""
