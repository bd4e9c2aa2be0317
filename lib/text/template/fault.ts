// Errors that end a render: faults with the name of a Python exception, and the bounds of the
// sandbox.

/** A template that Python's jinja2 would refuse as well, or that exceeds a bound. */
export class TemplateFault extends Error {
  /** Line where the template failed; 0 while it is unknown. */
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

/** A template that jinja2 does not compile. */
export function syntaxError(message: string, line: number): TemplateFault {
  const fault = new TemplateFault('TemplateSyntaxError', message);
  fault.line = line;
  return fault;
}

/** A bound of the sandbox that a render has reached. */
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

/** Statements, iterations, calls and items of one render. */
const STEPS = 20_000_000;
/** UTF-16 units of a text that a template writes or computes. */
const TEXT = 2 ** 26;
/** Bits of an integer. */
const BITS = 2 ** 17;
/** Macros that call each other, and values within each other. */
const DEPTH = 150;
/** Items of a range, as in jinja2's sandbox. */
export const RANGE = 100_000;

/** A render is synchronous, so that one meter serves all of them in turn. */
let steps = 0;
let depth = 0;

/** Begins a render. */
export function resetMeter(): void {
  steps = STEPS;
  depth = 0;
}

/** Throws TemplateLimit if the render has used up its steps. */
export function spend(count = 1): void {
  steps -= count;
  if (steps < 0) throw new TemplateLimit(`${STEPS} steps`, 'more');
}

/** Accounts for work on a text. */
export function spendText(length: number): void {
  if (length >= 64) spend(length >>> 6);
}

/** Returns `text`. Throws TemplateLimit if it is too long. */
export function bounded(text: string): string {
  requireText(text.length);
  return text;
}

/** Throws TemplateLimit if a text of `length` units is too long to be made. */
export function requireText(length: number): void {
  if (length > TEXT) throw new TemplateLimit(`${TEXT} characters of text`, String(length));
}

/** Throws TemplateLimit if an integer of `bits` bits is too large to be made. */
export function requireBits(bits: number): void {
  if (bits > BITS) throw new TemplateLimit(`an integer of ${BITS} bits`, String(bits));
}

/** Runs `work` one level deeper. Throws RecursionError where Python would. */
export function deeper<T>(work: () => T): T {
  if (++depth > DEPTH) {
    throw new TemplateFault('RecursionError', 'maximum recursion depth exceeded');
  }
  try {
    return work();
  } finally {
    depth--;
  }
}
