// Parses the processor's name and instruction sets from the text of /proc/cpuinfo.

/** Instruction sets that the CPU back end or OpenBLAS uses, with Linux's names. */
const FEATURES = [
  'avx2',
  'fma',
  'f16c',
  'sse4_2',
  'avx512f',
  'avx512_bf16',
  'amx_bf16',
  'asimd',
  'asimdhp',
  'fphp',
  'crc32',
  'bf16',
  'i8mm',
  'sve',
  'sve2',
];

/** Names of Arm's "CPU implementer" and "CPU part" numbers. */
const IMPLEMENTERS: Record<number, string> = {
  65: 'Arm',
  67: 'Cavium',
  70: 'Fujitsu',
  72: 'HiSilicon',
  78: 'NVIDIA',
  81: 'Qualcomm',
  97: 'Apple',
  192: 'Ampere',
};
const ARM_PARTS: Record<string, string> = {
  '41/d03': 'Cortex-A53',
  '41/d07': 'Cortex-A57',
  '41/d08': 'Cortex-A72',
  '41/d0b': 'Cortex-A76',
  '41/d0c': 'Neoverse N1 (Graviton2, Altra)',
  '41/d40': 'Neoverse V1 (Graviton3)',
  '41/d42': 'Cortex-A78AE (Orin)',
  '41/d49': 'Neoverse N2',
  '41/d4f': 'Neoverse V2 (Grace, Graviton4)',
  '41/d83': 'Neoverse V3AE (Thor)',
  '41/d84': 'Neoverse V3',
  '41/d85': 'Cortex-X925 (GB10)',
  '43/0af': 'ThunderX2',
  '46/001': 'A64FX',
  'c0/ac3': 'AmpereOne',
};

/** Returns the instruction sets of FEATURES that the first processor has, in that order. */
export function parseFeatures(cpuinfo: string): string[] {
  const flags = /^(?:flags|Features)\s*:\s*(.*)$/m.exec(cpuinfo)?.[1] ?? '';
  const present = new Set(flags.split(' '));
  return FEATURES.filter((feature) => present.has(feature));
}

/** Returns the name of an Arm processor; null if the text is of another processor. */
export function parseArmProcessor(cpuinfo: string): string | null {
  const readField = (name: string) => {
    const text = new RegExp(`^CPU ${name}\\s*:\\s*(0x[0-9a-fA-F]+)$`, 'm').exec(cpuinfo)?.[1];
    return text === undefined ? null : Number(text);
  };
  const [implementer, part] = [readField('implementer'), readField('part')];
  if (implementer === null || part === null) return null;
  const [maker, number] = [implementer.toString(16), part.toString(16).padStart(3, '0')];
  const name = ARM_PARTS[`${maker}/${number}`] ?? `part 0x${number}`;
  return `${IMPLEMENTERS[implementer] ?? `implementer 0x${maker}`} ${name}`;
}
