// The one error type of the library. Errors are data: place, expected, got and fix.

/**
 * Kinds of errors. A code never changes its name; messages may change. If a comment lists codes
 * without conditions ("Throws DS_SHAPE, DS_DTYPE."), the meanings below are the conditions.
 */
export type DsErrorCode =
  | 'DS_SHAPE' // shapes or strides do not fit
  | 'DS_DTYPE' // the dtype is not supported, or two dtypes differ
  | 'DS_DEVICE' // no such device, or tensors of two devices
  | 'DS_INDEX' // an index is out of range
  | 'DS_BOUNDS' // a view leaves its buffer
  | 'DS_RELEASED' // the object was destroyed or released
  | 'DS_OUT_OF_MEMORY' // GPU or host memory is exhausted
  | 'DS_CUDA' // a call of the GPU's driver or runtime failed
  | 'DS_LIBRARY' // a library for GPUs, such as cuBLASLt, is missing or too old
  | 'DS_ARGUMENT' // an argument or option is invalid
  | 'DS_CONFIG' // a value of the configuration is invalid
  | 'DS_AUTOGRAD' // calls of forward, backward and step in a wrong order
  | 'DS_NONFINITE' // a loss, gradient or weight is infinite or NaN
  | 'DS_DATA' // data files, rows, texts or a tokenizer are invalid
  | 'DS_CHECKPOINT' // a checkpoint or model folder is missing, damaged or of another model
  | 'DS_IO' // the file system refused to read or write
  | 'DS_HUB' // the hub refused a request, or a download is damaged
  | 'DS_COMM' // another rank failed, left or is late
  | 'DS_PLATFORM' // the package has no addon for this machine
  | 'DS_LIMIT' // a limit of the library or of the operating system is exceeded
  | 'DS_INTERNAL'; // a defect of this library: please report it

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
