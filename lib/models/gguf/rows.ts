// The order of rows in GGUF files, where it differs from that of Hugging Face's files.

/** Returns the row in a file of a row of the model; null: it is in another tensor. */
export type RowMap = (row: number) => number | null;

/** Numbers of heads, and the rows of each. */
export interface HeadRows {
  readonly heads: number;
  readonly kvHeads: number;
  readonly dim: number;
}

/** Rows j and j + dim / 2 of each head are rows 2j and 2j + 1 of the file. */
export function pairedRow(row: number, dim: number): number {
  const [head, inner] = [Math.floor(row / dim), row % dim];
  const half = dim / 2;
  return head * dim + 2 * (inner % half) + Math.floor(inner / half);
}

/** The row among all queries, keys or values, of a matrix that has them by key heads. */
function unjoined({ heads, kvHeads, dim }: HeadRows, row: number) {
  const shared = heads / kvHeads;
  const [group, inner] = [Math.floor(row / (dim * (shared + 2))), row % (dim * (shared + 2))];
  const [part, channel] = [Math.floor(inner / dim), inner % dim];
  if (part < shared) return { kind: 'q', row: (group * shared + part) * dim + channel } as const;
  return { kind: part === shared ? 'k' : 'v', row: group * dim + channel } as const;
}

/**
 * Rows of a matrix that has, for each key head, its queries, the key and the value. The file has
 * all queries, then all keys, then all values.
 */
export const joinedRows = (sizes: HeadRows): ((row: number) => number) => {
  const { heads, kvHeads, dim } = sizes;
  const first = { q: 0, k: heads * dim, v: (heads + kvHeads) * dim };
  return (row) => {
    const place = unjoined(sizes, row);
    return first[place.kind] + place.row;
  };
};

/** The rows of such a matrix that are queries, keys or values, for files with three matrices. */
export const splitRows =
  (sizes: HeadRows, kind: 'q' | 'k' | 'v', isPaired: boolean): RowMap =>
  (row) => {
    const place = unjoined(sizes, row);
    if (place.kind !== kind) return null;
    return isPaired && kind !== 'v' ? pairedRow(place.row, sizes.dim) : place.row;
  };

/** An expert stores the rows of its gate first, then the rows of its `up` matrix. */
export const gateRows =
  (width: number, isGate: boolean): RowMap =>
  (row) => {
    const [expert, inner] = [Math.floor(row / (2 * width)), row % (2 * width)];
    if (inner < width !== isGate) return null;
    return expert * width + (inner % width);
  };
