// Formats a value for an error message, as the caller passed it.
const LENGTH = 60;
const ITEMS = 8;

/**
 * Returns text such as '"f32"', '1.5', 'an array [1, 2]', 'a tensor [2, 3] f32', 'the function
 * Linear' or 'an object { lr, dim }'.
 */
export function formatValue(value: unknown): string {
  if (typeof value === 'string') return cut(JSON.stringify(value));
  if (typeof value === 'function') return `the function ${value.name || '() => ...'}`;
  if (typeof value === 'bigint') return `${value}n`;
  if (typeof value !== 'object' || value === null) return String(value);
  if (Array.isArray(value)) return `an array ${cut(formatItems(value))}`;
  if (isTensorLike(value)) return `a tensor ${describe(value)}`;
  if (ArrayBuffer.isView(value)) return `a ${value.constructor.name}`;
  if (value instanceof Promise) return 'a promise (is an await missing?)';
  const { name = 'Object' } = value.constructor ?? {};
  if (name !== 'Object') return `an object of class ${name}`;
  return `an object { ${cut(Object.keys(value).join(', '))} }`;
}

/** Returns "[2, 3] bf16", for messages. */
export function describe(view: { shape: readonly number[]; dtype: string }): string {
  return `[${view.shape.join(', ')}] ${view.dtype}`;
}

function isTensorLike(value: object): value is { shape: readonly number[]; dtype: string } {
  return 'shape' in value && Array.isArray(value.shape) && 'dtype' in value;
}

const formatKind = (value: object): string => (isTensorLike(value) ? 'tensor' : 'object');

function formatItems(items: readonly unknown[]): string {
  const shown = Array.from(items.slice(0, ITEMS), (item) =>
    Array.isArray(item)
      ? '[..]'
      : typeof item === 'object' && item
        ? formatKind(item)
        : formatValue(item),
  );
  return `[${shown.join(', ')}${items.length > ITEMS ? ', ..' : ''}]`;
}

function cut(text: string): string {
  return text.length > LENGTH ? `${text.slice(0, LENGTH)}..` : text;
}
