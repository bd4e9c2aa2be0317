// Lists the published figures of GPUs: rates, memory and links.

/** Figures of a GPU from its data sheet. Rates of products are dense, without sparsity. */
export interface Gpu {
  /** Name in options, such as "a100-80g". */
  key: string;
  /** Name in texts. */
  label: string;
  /** Matches the name that the driver reports; the first match of the table applies. */
  name: RegExp;
  /** Compute capability. */
  capability: number;
  /** Peak TFLOP/s of bf16 and f16 on tensor cores, with f32 sums. */
  half: number;
  /** Peak TFLOP/s of f32 without tensor cores: products are not rounded to TF32. */
  f32: number;
  /** Memory that the driver reports, in GiB. */
  memory: number;
  /** GB/s of device memory. */
  bandwidth: number;
  /** GB/s of NVLink in each direction; null: GPUs exchange data over PCIe. */
  nvlink: number | null;
  /** GB/s of PCIe in each direction. */
  pcie: number;
}

/** PCIe of 16 lanes in each direction. */
const [GEN4, GEN5] = [32, 64];

/**
 * Source: NVIDIA's data sheets (B200, H200, H100, A100, L40S, L4, A40, A10, A10G, RTX A6000, RTX
 * 6000 Ada) and architecture white papers (GA102, Ada, RTX Blackwell). Optional NVLink bridges do
 * not count. Memory is a little below the data sheet, as drivers report it.
 */
export const GPUS: readonly Gpu[] = [
  {
    key: 'b200',
    label: 'B200',
    name: /\bB200\b/,
    capability: 10,
    half: 2250,
    f32: 75,
    memory: 178,
    bandwidth: 8000,
    nvlink: 900,
    pcie: GEN5,
  },
  {
    key: 'h200-nvl',
    label: 'H200 NVL',
    name: /\bH200 NVL\b/,
    capability: 9,
    half: 835.5,
    f32: 60,
    memory: 139,
    bandwidth: 4800,
    nvlink: null,
    pcie: GEN5,
  },
  {
    key: 'h100-nvl',
    label: 'H100 NVL',
    name: /\bH100 NVL\b/,
    capability: 9,
    half: 835.5,
    f32: 60,
    memory: 93,
    bandwidth: 3900,
    nvlink: null,
    pcie: GEN5,
  },
  {
    key: 'h100-pcie',
    label: 'H100 PCIe',
    name: /\bH100 PCIe\b/i,
    capability: 9,
    half: 756,
    f32: 51,
    memory: 79,
    bandwidth: 2000,
    nvlink: null,
    pcie: GEN5,
  },
  {
    key: 'h200',
    label: 'H200',
    name: /\bG?H200\b/,
    capability: 9,
    half: 989.4,
    f32: 66.9,
    memory: 139,
    bandwidth: 4800,
    nvlink: 450,
    pcie: GEN5,
  },
  {
    key: 'h100',
    label: 'H100',
    name: /\bH100\b/,
    capability: 9,
    half: 989.4,
    f32: 66.9,
    memory: 79,
    bandwidth: 3350,
    nvlink: 450,
    pcie: GEN5,
  },
  {
    key: 'a100-80g',
    label: 'A100-80G',
    name: /\bA[18]00\b.*\b80GB/,
    capability: 8,
    half: 312,
    f32: 19.5,
    memory: 79,
    bandwidth: 2039,
    nvlink: 300,
    pcie: GEN4,
  },
  {
    key: 'a100-40g',
    label: 'A100-40G',
    name: /\bA[18]00\b/,
    capability: 8,
    half: 312,
    f32: 19.5,
    memory: 39,
    bandwidth: 1555,
    nvlink: 300,
    pcie: GEN4,
  },
  {
    key: 'l40s',
    label: 'L40S',
    name: /\bL40S\b/,
    capability: 8.9,
    half: 362,
    f32: 91.6,
    memory: 44,
    bandwidth: 864,
    nvlink: null,
    pcie: GEN4,
  },
  {
    key: 'l4',
    label: 'L4',
    name: /\bL4\b/,
    capability: 8.9,
    half: 121,
    f32: 30.3,
    memory: 22,
    bandwidth: 300,
    nvlink: null,
    pcie: GEN4,
  },
  {
    key: 'rtx6000-ada',
    label: 'RTX 6000 Ada',
    name: /\bRTX 6000 Ada\b/,
    capability: 8.9,
    half: 364.2,
    f32: 91.1,
    memory: 47,
    bandwidth: 960,
    nvlink: null,
    pcie: GEN4,
  },
  {
    key: 'rtxa6000',
    label: 'RTX A6000',
    name: /\bRTX A6000\b/,
    capability: 8.6,
    half: 154.8,
    f32: 38.7,
    memory: 47,
    bandwidth: 768,
    nvlink: null,
    pcie: GEN4,
  },
  {
    key: 'a40',
    label: 'A40',
    name: /\bA40\b/,
    capability: 8.6,
    half: 149.7,
    f32: 37.4,
    memory: 44,
    bandwidth: 696,
    nvlink: null,
    pcie: GEN4,
  },
  {
    key: 'a10',
    label: 'A10',
    name: /\bA10\b/,
    capability: 8.6,
    half: 125,
    f32: 31.2,
    memory: 22,
    bandwidth: 600,
    nvlink: null,
    pcie: GEN4,
  },
  {
    key: 'a10g',
    label: 'A10G',
    name: /\bA10G\b/,
    capability: 8.6,
    half: 70,
    f32: 31.5,
    memory: 22,
    bandwidth: 600,
    nvlink: null,
    pcie: GEN4,
  },
  {
    key: 'rtx5090',
    label: 'RTX 5090',
    name: /\bRTX 5090\b(?! [DL])/,
    capability: 12,
    half: 209.5,
    f32: 104.8,
    memory: 31.3,
    bandwidth: 1792,
    nvlink: null,
    pcie: GEN5,
  },
  {
    key: 'rtx4090',
    label: 'RTX 4090',
    name: /\bRTX 4090\b(?! [DL])/,
    capability: 8.9,
    half: 165.2,
    f32: 82.6,
    memory: 23.6,
    bandwidth: 1008,
    nvlink: null,
    pcie: GEN4,
  },
  {
    key: 'rtx3090',
    label: 'RTX 3090',
    name: /\bRTX 3090\b(?! Ti)/,
    capability: 8.6,
    half: 71,
    f32: 35.6,
    memory: 23.6,
    bandwidth: 936,
    nvlink: null,
    pcie: GEN4,
  },
];

/** Older GPUs with their compute capability; the kernels need 8.0. */
export const TOO_OLD: Readonly<Record<string, number>> = {
  p100: 6,
  gtx1080ti: 6.1,
  v100: 7,
  titanv: 7,
  t4: 7.5,
  rtx2080ti: 7.5,
  rtx8000: 7.5,
};

/** Returns the figures of a GPU by the name that its driver reports; null for unknown GPUs. */
export const findGpuByName = (name: string): Gpu | null =>
  GPUS.find((gpu) => gpu.name.test(name)) ?? null;
