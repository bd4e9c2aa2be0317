// Rules that select how layers are split, by parameter name, in the format of DeepSpeed's AutoTP
// (tensor_parallel.partition_config).
import { formatValue } from '../runtime/format-value.js';
import { Regex } from '../runtime/regex/regex.js';

const TYPES = ['row', 'column', 'skip'] as const;

/** A rule of partition_config. */
export interface PartitionSpec {
  /** Patterns that match the start of a parameter's name. */
  patterns: readonly Regex[];
  type: (typeof TYPES)[number];
  /** Number of equal concatenated parts along the split dim; each is split separately. */
  parts: number;
}

/** Why a rule is invalid: the key of the rule, and the fields of a DsError. */
interface SpecError {
  key: string;
  expected: string;
  got: string;
  hint: string;
}

type SpecFields = Readonly<Record<string, unknown>>;

const KEYS: readonly string[] = ['patterns', 'partition_type', 'shape', 'partition_dim'];

/** Returns why a rule is invalid; null if it is valid. */
export function findSpecError(spec: SpecFields): SpecError | null {
  const error = read(spec);
  return 'expected' in error ? error : null;
}

/** Returns the valid rules among `specs`, parsed. */
export function partitionSpecs(specs: readonly SpecFields[]): PartitionSpec[] {
  return specs.map(read).filter((item) => 'patterns' in item);
}

/**
 * Parses a rule. Returns why it is invalid instead of throwing, so that callers add the path of the
 * rule in the configuration.
 */
function read(spec: SpecFields): PartitionSpec | SpecError {
  const invalidSpecError = (key: string, expected: string, hint = ''): SpecError => {
    return { key, expected, got: formatValue(spec[key]), hint };
  };
  const other = Object.keys(spec).find((key) => !KEYS.includes(key));
  if (other !== undefined) return invalidSpecError(other, KEYS.join(', '));
  const {
    patterns,
    partition_type: type = 'column',
    shape = null,
    partition_dim: dim = null,
  } = spec;
  const expressions = Array.isArray(patterns) ? patterns.map(expression) : [];
  if (expressions.length === 0 || expressions.includes(null)) {
    return invalidSpecError('patterns', 'regular expressions of names of parameters');
  }
  if (!(TYPES as readonly unknown[]).includes(type))
    return invalidSpecError('partition_type', '"row", "column" or "skip"');
  if (dim !== null && type !== 'skip' && dim !== (type === 'row' ? 1 : 0)) {
    return invalidSpecError('partition_dim', '0 with "column" and 1 with "row"', 'Omit it.');
  }
  const parts = partsIn(shape);
  if (parts === null || (parts > 1 && type === 'row')) {
    const hint = 'Parts of different sizes (grouped heads) need separate layers.';
    return invalidSpecError('shape', '[n, -1] with "column": n equal concatenated parts', hint);
  }
  return { patterns: expressions as Regex[], type: type as PartitionSpec['type'], parts };
}

function expression(pattern: unknown): Regex | null {
  try {
    return typeof pattern === 'string' ? new Regex(pattern) : null;
  } catch {
    return null;
  }
}

/** Returns n of a shape [n, -1]; 1 without a shape; null for other values. */
function partsIn(shape: unknown): number | null {
  if (shape === null) return 1;
  if (!Array.isArray(shape) || shape.length !== 2 || shape[1] !== -1) return null;
  const [parts] = shape as unknown[];
  if (parts === -1) return 1;
  return typeof parts === 'number' && Number.isInteger(parts) && parts > 0 ? parts : null;
}
