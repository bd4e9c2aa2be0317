/** A vocabulary, and the function that encodes pieces with it. */
export interface Model {
  readonly ids: ReadonlyMap<string, number>;
  /**
   * Appends the ids of a piece, which is not empty. Throws DS_DATA if the vocabulary has neither
   * its tokens nor an unknown token.
   */
  encode(piece: string, ids: number[]): void;
}
