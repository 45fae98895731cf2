"""What GPUs can compute at most, as their maker says, and which share of that a row's training is."""

from comparison.rows import Row

# TFLOP/s without sparsity, by the name that the driver gives a card and RunResult.precision; of 16 bits and TF32 those
# of tensor cores, which sum up in float32. Another card, or a part of one (MIG), is not known. Sources: the data sheets
# "NVIDIA H100 Tensor Core GPU" and "H200" (2024; with sparsity, so halved), "A100 80GB" (2022), "L40S" (2023), "L4"
# (2023; halved), "A10" (2021), "T4" (2019), "Tesla V100" (2018) and "Tesla P100" (2016); "NVIDIA Ada GPU Architecture",
# 2023, for the RTX 4090.
FP32, TF32, BF16, FP16 = "float32", "float32 as TF32", "bfloat16 autocast", "float16 autocast"
_H100 = {FP32: 67.0, TF32: 494.5, BF16: 989.5, FP16: 989.5}
_A100 = {FP32: 19.5, TF32: 156.0, BF16: 312.0, FP16: 312.0}
_V100, _V100_PCIE = {FP32: 15.7, FP16: 125.0}, {FP32: 14.0, FP16: 112.0}
PEAKS: dict[str, dict[str, float]] = {
    **dict.fromkeys(("NVIDIA H100 80GB HBM3", "NVIDIA H200"), _H100),
    "NVIDIA H100 NVL": {FP32: 60.0, TF32: 417.5, BF16: 835.5, FP16: 835.5},
    "NVIDIA H100 PCIe": {FP32: 51.0, TF32: 378.0, BF16: 756.5, FP16: 756.5},
    **dict.fromkeys(("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB"), _A100),
    **dict.fromkeys(("NVIDIA A100-PCIE-40GB", "NVIDIA A100 80GB PCIe"), _A100),
    "NVIDIA L40S": {FP32: 91.6, TF32: 183.0, BF16: 362.0, FP16: 362.0},
    "NVIDIA L4": {FP32: 30.3, TF32: 60.0, BF16: 121.0, FP16: 121.0},
    "NVIDIA A10": {FP32: 31.2, TF32: 62.5, BF16: 125.0, FP16: 125.0},
    "NVIDIA GeForce RTX 4090": {FP32: 82.6, TF32: 82.6, BF16: 165.2, FP16: 165.2},
    "Tesla T4": {FP32: 8.1, FP16: 65.0},
    **dict.fromkeys(("Tesla V100-SXM2-16GB", "Tesla V100-SXM2-32GB"), _V100),
    **dict.fromkeys(("Tesla V100-PCIE-16GB", "Tesla V100-PCIE-32GB"), _V100_PCIE),
    "Tesla P100-PCIE-16GB": {FP32: 9.3, FP16: 18.7},
}


def utilisation(row: Row, images_per_second: float, flop_per_image: float | None) -> float | None:
    """Return which share of its devices' peak a row computes, 0..1; None where the peak of one is not known.

    Model FLOPs utilisation (A. Chowdhery et al., "PaLM", 2022, appendix B): what the network needs, and not what is
    computed a second time to save memory. flop_per_image: of its forward and backward pass.
    """
    if not flop_per_image or row.simulated or not row.results:
        return None
    result = row.results[0]
    names = [device.partition(" (")[2].removesuffix(")") for device in result.devices]
    peaks = [PEAKS.get(name, {}).get(result.precision) for name in names]
    known = [1e12 * peak for peak in peaks if peak]
    return images_per_second * flop_per_image / sum(known) if len(known) == len(peaks) else None
