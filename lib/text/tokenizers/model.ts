/** A vocabulary and how pieces are encoded with it. */
export interface Model {
  readonly ids: ReadonlyMap<string, number>;
  /** Appends the ids of a piece, which is not empty. Throws DS_DATA. */
  encode(piece: string, ids: number[]): void;
}
