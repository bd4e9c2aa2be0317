// Errors that end a render: faults named after Python's exceptions, and limits of the sandbox.

/** An error that Python's jinja2 would raise too, or a limit. */
export class TemplateFault extends Error {
  /** Line of the failure; 0 while unknown. */
  line = 0;

  /** `kind` is the name of Python's exception. */
  constructor(
    readonly kind: string,
    message: string,
  ) {
    super(message);
    this.name = kind;
  }
}

export const typeError = (message: string): TemplateFault =>
  new TemplateFault('TypeError', message);
export const valueError = (message: string): TemplateFault =>
  new TemplateFault('ValueError', message);
export const undefinedError = (message: string): TemplateFault =>
  new TemplateFault('UndefinedError', message);
export const runtimeError = (message: string): TemplateFault =>
  new TemplateFault('TemplateRuntimeError', message);

/** jinja2 cannot compile the template. */
export function syntaxError(message: string, line: number): TemplateFault {
  const fault = new TemplateFault('TemplateSyntaxError', message);
  fault.line = line;
  return fault;
}

/** The render has reached a limit of the sandbox. */
export class TemplateLimit extends Error {
  line = 0;

  constructor(
    readonly bound: string,
    readonly got: string,
  ) {
    super(`more than ${bound}`);
    this.name = 'TemplateLimit';
  }
}

/** Maximum statements, iterations, calls and items of one render. */
const MAX_STEPS = 20_000_000;
/** Maximum UTF-16 units of a text that a template writes or computes. */
const MAX_TEXT = 2 ** 26;
/** Maximum bits of an integer. */
const MAX_BITS = 2 ** 17;
/** Maximum depth of nested macro calls, and of nested values. */
const MAX_DEPTH = 150;
/** Maximum items of a range, as in jinja2's sandbox. */
export const MAX_RANGE = 100_000;

/** Renders are synchronous, so one counter serves all of them. */
let steps = 0;
let depth = 0;

/** Resets the counters at the start of a render. */
export function resetMeter(): void {
  steps = MAX_STEPS;
  depth = 0;
}

/** Counts steps. Throws TemplateLimit if the render has used all its steps. */
export function spend(count = 1): void {
  steps -= count;
  if (steps < 0) throw new TemplateLimit(`${MAX_STEPS} steps`, 'more');
}

/** Counts the work on a text of this length. */
export function spendText(length: number): void {
  if (length >= 64) spend(length >>> 6);
}

/** Returns `text`. Throws TemplateLimit if it is too long. */
export function requireBounded(text: string): string {
  requireText(text.length);
  return text;
}

/** Throws TemplateLimit if a text of `length` units would be too long. */
export function requireText(length: number): void {
  if (length > MAX_TEXT) throw new TemplateLimit(`${MAX_TEXT} characters of text`, String(length));
}

/** Throws TemplateLimit if an integer of `bits` bits would be too large. */
export function requireBits(bits: number): void {
  if (bits > MAX_BITS) throw new TemplateLimit(`an integer of ${MAX_BITS} bits`, String(bits));
}

/** Runs `work` one level deeper. Throws RecursionError as Python does. */
export function runDeeper<T>(work: () => T): T {
  if (++depth > MAX_DEPTH) {
    throw new TemplateFault('RecursionError', 'maximum recursion depth exceeded');
  }
  try {
    return work();
  } finally {
    depth--;
  }
}
