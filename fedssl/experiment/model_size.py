"""Check the size of a model before it is built."""

from __future__ import annotations

from torch import nn

from fedssl.core.errors import ConfigError

# 8 GB in float32; a ResNet-50 with the papers' heads has 50 million.
MAX_PARAMETERS = 2_000_000_000


def check_model_size(method: nn.Module) -> None:
    """Raise ConfigError for a model that no supported machine could train."""
    count = sum(tensor.numel() for tensor in (*method.parameters(), *method.buffers()))
    if count > MAX_PARAMETERS:
        raise ConfigError(
            f"the model would have {count:,} parameters, more than the {MAX_PARAMETERS:,} that "
            "are supported: lower the sizes under [method]"
        )
