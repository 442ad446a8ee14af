"""ShuffleNetV2 at width 1 (Ma et al. 2018) for small images: torchvision's layers with a stem that keeps the size.

torchvision's units are the ones of FedDF's released code: one half of the channels passes, the other is filtered,
both are shuffled in two groups; a unit with stride 2 filters all channels twice. The parameter counts agree too.
"""

from torch import nn

from fedrepro.models.sources import small_stem


def shufflenetv2(*, classes: int) -> nn.Module:
    """Make the network: images `[N, 3, H, H]` to logits `[N, C]`; sides are divided by 8 and not by 32.

    Args:
        classes: number of classes C, at least 1.

    Raises:
        ValueError: if `classes` is below 1.
    """
    if classes < 1:
        raise ValueError(f"classes must be at least 1, got {classes}")
    from torchvision.models import shufflenet_v2_x1_0  # not above: it costs seconds, and few runs need it

    return small_stem(shufflenet_v2_x1_0(weights=None, num_classes=classes))
