// The one error type of the library. Errors are data: place, expected, got and fix.

/** Stable machine-readable codes; the text may change, these do not. */
export type DsErrorCode =
  | 'DS_SHAPE'
  | 'DS_DTYPE'
  | 'DS_DEVICE'
  | 'DS_INDEX'
  | 'DS_BOUNDS'
  | 'DS_RELEASED'
  | 'DS_OUT_OF_MEMORY'
  | 'DS_CUDA'
  | 'DS_LIBRARY'
  | 'DS_ARGUMENT'
  | 'DS_CONFIG'
  | 'DS_AUTOGRAD'
  | 'DS_NONFINITE'
  | 'DS_DATA'
  | 'DS_CHECKPOINT'
  | 'DS_IO'
  | 'DS_HUB'
  | 'DS_COMM'
  | 'DS_PLATFORM'
  | 'DS_LIMIT'
  | 'DS_INTERNAL';

/** The fields of a DsError. */
export interface DsErrorFields {
  /** Kind of the mistake or failure. */
  code: DsErrorCode;
  /** The operation or place ("matmul", "zero_optimization.stage", a file). */
  op: string;
  /** The valid value. */
  expected: string;
  /** The actual value. */
  got: string;
  /** The fix; may be empty. */
  hint?: string;
  /** The underlying error. */
  cause?: unknown;
}

/**
 * Frames of a native failure's stack: a model's modules lie between the addon and the program's own
 * line.
 */
const FRAMES = 60;

/** Writes entries on lines of their own, for `got` of an error that lists several. */
export const formatLines = (entries: readonly string[]): string =>
  entries.map((entry) => `\n  ${entry}`).join('');

/** Puts the fix on a line of its own behind a list of entries. */
function formatMessage({ op, expected, got, hint }: DsErrorFields): string {
  const end = got.includes('\n  ') ? '\n' : '. ';
  return `${op}: expected ${expected}, got ${got}${hint ? `${end}${hint}` : end.trimEnd()}`;
}

/** The class of all errors of the library. `message` is "op: expected X, got Y. hint". */
export class DsError extends Error {
  /** The kind of failure; programs branch on it. */
  readonly code: DsErrorCode;
  /** The operation, the option or the key of the configuration that failed. */
  readonly op: string;
  /** The valid value. */
  readonly expected: string;
  /** The actual value. */
  readonly got: string;
  /** The fix; "" if there is none. */
  readonly hint: string;

  /** Builds the message from the fields. */
  constructor(fields: DsErrorFields) {
    super(formatMessage(fields), { cause: fields.cause });
    this.name = 'DsError';
    this.code = fields.code;
    this.op = fields.op;
    this.expected = fields.expected;
    this.got = fields.got;
    this.hint = fields.hint ?? '';
  }

  /**
   * Converts an error of the addon to a DsError. Its stack begins at the JavaScript call site.
   * Returns other values unchanged.
   */
  static fromNative(thrown: unknown): unknown {
    if (thrown instanceof DsError) return thrown;
    const native = thrown as Partial<DsErrorFields> | null;
    if (!native || typeof native !== 'object' || typeof native.code !== 'string' || !native.op) {
      return thrown;
    }
    const { stackTraceLimit } = Error;
    Error.stackTraceLimit = Math.max(stackTraceLimit, FRAMES);
    try {
      return new DsError({
        code: native.code,
        op: native.op,
        expected: String(native.expected),
        got: String(native.got),
        hint: native.hint,
      });
    } finally {
      Error.stackTraceLimit = stackTraceLimit;
    }
  }
}
