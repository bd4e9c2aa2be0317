// Separates the reasoning of a chat's answer from the text that its format holds for.
import { AnswerReader } from '../text/tool-calls/answer-reader.js';
import type { GenerationPiece } from './continuation.js';
import type { AnswerReading } from './held-answer.js';

/** The pieces with their reasoning apart; the same pieces if the request does not read answers. */
export function separateReasoning(
  pieces: AsyncIterableIterator<GenerationPiece>,
  { reading }: { readonly reading: AnswerReading | null },
): AsyncIterableIterator<GenerationPiece> {
  return reading ? read(pieces, reading) : pieces;
}

async function* read(
  pieces: AsyncIterable<GenerationPiece>,
  { form, promptEnd }: AnswerReading,
): AsyncIterableIterator<GenerationPiece> {
  const readers = new Map<number, AnswerReader>();
  for await (const piece of pieces) {
    const reader = readers.get(piece.index) ?? new AnswerReader(form, promptEnd);
    readers.set(piece.index, reader);
    const events = reader.push(piece.text);
    if (piece.finishReason !== null) events.push(...reader.end());
    const of = (type: 'content' | 'reasoning'): string =>
      events.map((event) => (event.type === type ? event.text : '')).join('');
    const reasoning = of('reasoning');
    yield { ...piece, text: of('content'), ...(reasoning && { reasoning }) };
  }
}
