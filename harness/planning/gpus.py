"""What GPUs reach on paper: the peak in bfloat16 without sparsity, and the memory's bandwidth, from their makers' data sheets."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GPU", "gpu_named"]


@dataclass(frozen=True)
class GPU:
    """The peaks of a GPU.

    Attributes:
        tflops: Matrix products in bfloat16 with sums in float32, dense, in TFLOP/s.
        terabytes: The memory's bandwidth, in TB/s.
    """

    tflops: float
    terabytes: float


# By what the driver's name contains; the first that fits counts.
_GPUS: dict[str, GPU] = {
    "H200 NVL": GPU(836, 4.8),  # NVIDIA H200 data sheet: 1,671 TFLOP/s with sparsity
    "H200": GPU(989, 4.8),  # the same: 1,979 with sparsity
    "H100 NVL": GPU(836, 3.9),  # NVIDIA H100 data sheet: 1,671 with sparsity
    "H100 PCIe": GPU(756, 2.0),  # NVIDIA H100 data sheet of 2022: 1,513 with sparsity
    "H100": GPU(989, 3.35),  # NVIDIA H100 data sheet, SXM: 1,979 with sparsity
    "A100-SXM4-40GB": GPU(312, 1.555),  # NVIDIA A100 data sheet
    "A100-PCIE-40GB": GPU(312, 1.555),
    "A100 80GB PCIe": GPU(312, 1.935),
    "A100": GPU(312, 2.039),  # SXM, 80 GB
    "L40S": GPU(362, 0.864),  # NVIDIA L40S data sheet: 733 with sparsity
    "RTX 4090": GPU(165, 1.008),  # NVIDIA Ada GPU architecture, appendix A: 165.2 with sums in float32
}


def gpu_named(name: str) -> GPU | None:
    """Returns the peaks of the GPU that torch calls `name`; None if it is not in the table.

    >>> gpu_named("NVIDIA H100 80GB HBM3")
    GPU(tflops=989, terabytes=3.35)
    >>> gpu_named("NVIDIA GeForce RTX 3060")
    """
    return next((gpu for part, gpu in _GPUS.items() if part in name), None)
