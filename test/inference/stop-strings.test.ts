// Tests stop strings split over pieces, and the text of tokens without the held-back part.
import { join } from 'node:path';
import { initInference, nn, text } from '../../lib/index.js';
import { StopStrings, TextStream } from '../../lib/inference/text-stream.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { DecodeStream } from '../../lib/text/decode-stream.js';

/** The text for `pieces`, and the stop string that ended it. */
function run(stops: readonly string[], pieces: readonly string[]) {
  const strings = new StopStrings(stops);
  const texts: string[] = [];
  let stop: string | null = null;
  for (const piece of pieces) {
    const pushed = strings.push(piece);
    texts.push(pushed.text);
    stop ??= pushed.stop;
  }
  return { texts, rest: strings.end(), stop };
}

test('text is emitted as soon as it cannot become a stop string', () => {
  const { texts, rest, stop } = run(['\n\nUser:', 'END'], ['Hi', ' E', 'N', 'large', '\n', '\nUs']);
  expect(texts).toEqual(['Hi', ' ', '', 'ENlarge', '', '']);
  expect(rest).toBe('\n\nUs');
  expect(stop).toBeNull();
});

test('a stop string over several pieces ends the text before it', () => {
  const { texts, rest, stop } = run(['END'], ['one EN', 'E', 'N', 'D two', 'three']);
  expect(texts.join('')).toBe('one EN');
  expect(rest).toBe('');
  expect(stop).toBe('END');
});

test.each([
  [['ab', 'abc'], 'xabc', 'x', 'ab'],
  [['bc', 'abc'], 'xabc', 'x', 'abc'],
  [['c', 'bb'], 'abbc', 'a', 'bb'],
  [['aab'], 'aaab', 'a', 'aab'],
  [['😀'], 'a😀b', 'a', '😀'],
  [['b', 'a'], 'xab', 'x', 'a'],
])('%j end %j at the string that is complete first', (stops, text, before, stop) => {
  expect(run(stops, [text])).toMatchObject({ texts: [before], stop });
  const single = run(stops, text.split(''));
  expect([single.texts.join(''), single.stop]).toEqual([before, stop]);
});

/** Integers below `n`, determined by the seed. */
function randomBelow(seed: number): (n: number) => number {
  let state = seed;
  return (n) => {
    state = (state * 1103515245 + 12345) & 0x7fffffff;
    return (state >> 8) % n;
  };
}

test('any split of the text gives the same result', () => {
  const below = randomBelow(7);
  for (let round = 0; round < 500; ++round) {
    const letters = (n: number) => Array.from({ length: n }, () => 'ab'[below(2)]).join('');
    const stops = Array.from({ length: 1 + below(3) }, () => letters(2 + below(4)));
    const text = letters(20);
    const fullResult = run(stops, [text]);
    const pieces: string[] = [];
    for (let at = 0; at < text.length; ) {
      const size = 1 + below(4);
      pieces.push(text.slice(at, at + size));
      at += size;
    }
    const cut = run(stops, pieces);
    expect(cut.texts.join('') + cut.rest).toBe(fullResult.texts.join('') + fullResult.rest);
    expect(cut.stop).toBe(fullResult.stop);
    const ends = stops
      .filter((stop) => text.includes(stop))
      .map((stop) => text.indexOf(stop) + stop.length);
    const joined = fullResult.texts.join('') + fullResult.rest;
    const length =
      fullResult.stop === null ? text.length : Math.min(...ends) - fullResult.stop.length;
    expect(joined).toBe(text.slice(0, length));
  }
});

test.each([['END'], [['']], [[1]], [null]])('%j is no list of stop strings', (stops) => {
  expect(() => new StopStrings(stops as string[])).toThrow(/generate stop: expected a list of str/);
});

/** Tokens are bytes. */
const bytes = {
  decodeStream: () => new DecodeStream((ids) => Buffer.from(ids).toString('utf8')),
};

test('characters are emitted whole, and stop strings are found in text, not in tokens', () => {
  const stream = new TextStream(bytes, ['ß!']);
  const text = 'a😀ßé';
  const pushed = [...Buffer.from(text)].map((byte) => stream.push(byte).text);
  expect(pushed.filter((piece) => piece !== '')).toEqual(['a', '😀', 'ßé']);
  const tail = [...Buffer.from('ß!x')].map((byte) => stream.push(byte));
  expect(tail.map(({ stop }) => stop)).toEqual([null, null, 'ß!', null]);
  expect(tail.map((stoppedText) => stoppedText.text).join('')).toBe('');
  expect(stream.end()).toEqual({ text: '', stop: null });
});

test('held text is emitted at the end, with U+FFFD for a truncated character', () => {
  const stream = new TextStream(bytes, ['STOP']);
  expect(stream.push(Buffer.from('go ST')).text).toBe('go ');
  expect(stream.push(0xc3).text).toBe('');
  expect(stream.end()).toEqual({ text: 'ST\uFFFD', stop: null });
});

/**
 * Finds the end as vLLM does: after each piece, a stop string that ends after the minimum length.
 */
function endOf(stops: readonly string[], pieces: readonly string[], least: number): string | null {
  let text = '';
  for (const [i, piece] of pieces.entries()) {
    const seen = text.length;
    text += piece;
    if (i < least) continue;
    const ends = stops.flatMap((stop) => {
      const at = text.indexOf(stop, Math.max(0, seen + 1 - stop.length));
      return at < 0 ? [] : [{ at, end: at + stop.length }];
    });
    ends.sort((a, b) => a.end - b.end || a.at - b.at);
    if (ends[0]) return text.slice(0, ends[0].at);
  }
  return null;
}

test('stop strings before minTokens stay text, and later ones end it', () => {
  const below = randomBelow(11);
  for (let round = 0; round < 1000; ++round) {
    const letters = (n: number) => Array.from({ length: n }, () => 'ab'[below(2)]).join('');
    const stops = Array.from({ length: 1 + below(3) }, () => letters(1 + below(4)));
    const pieces = Array.from({ length: 8 }, () => letters(below(4)));
    const least = below(9);
    const strings = new StopStrings(stops);
    let text = '';
    let stop: string | null = null;
    for (const [i, piece] of pieces.entries()) {
      const pushed = strings.push(piece, i >= least);
      text += pushed.text;
      stop ??= pushed.stop;
    }
    text += strings.end();
    const expected = endOf(stops, pieces, least);
    expect({ stops, pieces, least, text, isStopped: stop !== null }).toEqual({
      stops,
      pieces,
      least,
      text: expected ?? pieces.join(''),
      isStopped: expected !== null,
    });
  }
});

test('the last piece of a stream names the stop string, also a special token', async () => {
  const tokenizer = text.Tokenizer.fromPretrained(join(packageRoot(), 'examples', 'tokenizer'));
  const sizes = { vocabSize: tokenizer.vocabSize, maxSeq: 64, layers: 1, heads: 2, channels: 16 };
  const small = { max_ragged_sequence_count: 1, kv_cache: { block_size: 16, blocks: 4 } };
  const engine = await initInference(new nn.models.GPT2(sizes), small, { tokenizer });
  for (const [stop, token, count] of [
    ['aa', 'a', 2],
    ['<|im_end|>', '<|im_end|>', 1],
    ['b', 'a', 6],
  ] as const) {
    const logitBias = { [tokenizer.tokenToId(token) ?? 0]: 1000 };
    const request = { prompt: [3], maxNewTokens: 6, ignoreEos: true, logitBias, stop: ['x', stop] };
    const names: (string | undefined)[] = [];
    for await (const { stopString } of engine.stream(request)) names.push(stopString);
    const last = count < 6 ? stop : undefined;
    expect(names).toEqual([...Array.from({ length: count - 1 }, () => undefined), last]);
  }
  await engine.destroy();
});
