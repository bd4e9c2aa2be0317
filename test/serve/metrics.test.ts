// Tests the times and reasons that GET /metrics counts for a request.
import { Metrics } from '../../lib/serve/metrics.js';
import type { ServedPiece } from '../../lib/serve/served-engine.js';

/** The seconds of the clock. */
let time = 0;
beforeEach(() => {
  jest.spyOn(performance, 'now').mockImplementation(() => 1000 * time);
});
afterEach(() => jest.restoreAllMocks());

const piece = (tokens: number, finishReason: string | null = null) =>
  ({ tokens: Array(tokens).fill(5), finishReason }) as unknown as ServedPiece;

/** Sum and count of a histogram. */
function valuesOf(metrics: Metrics, name: string): number[] {
  const text = metrics.text([]);
  const value = (part: string) => new RegExp(`^ds_${name}_seconds_${part} (.*)$`, 'm').exec(text);
  return ['sum', 'count'].map((part) => Number(value(part)?.[1]));
}

test('the times of a request with two choices', () => {
  const metrics = new Metrics();
  time = 100;
  const watch = metrics.watch();
  time = 100.5;
  watch.recordStart();
  time = 101;
  watch.recordStart();
  expect(valuesOf(metrics, 'queue')).toEqual([0.5, 1]);
  // Text without tokens is no token.
  watch.recordPiece(0, piece(0));
  expect(valuesOf(metrics, 'time_to_first_token')).toEqual([0, 0]);
  time = 102;
  watch.recordPiece(0, piece(1));
  time = 103;
  watch.recordPiece(1, piece(1));
  expect(valuesOf(metrics, 'time_to_first_token')).toEqual([2, 1]);
  expect(valuesOf(metrics, 'inter_token')).toEqual([0, 0]);
  time = 104;
  watch.recordPiece(0, piece(4, 'stop'));
  time = 106;
  watch.recordPiece(1, piece(1, 'length'));
  // Four tokens within 2 s, and one after 3 s.
  expect(valuesOf(metrics, 'inter_token')).toEqual([5, 5]);
  time = 107;
  watch.recordEnd();
  expect(valuesOf(metrics, 'request')).toEqual([7, 1]);
});

test('answers are counted by reason and responses by status, over all requests', () => {
  const metrics = new Metrics();
  for (const reason of ['stop', 'length', 'stop']) metrics.watch().recordPiece(0, piece(1, reason));
  for (const status of [200, 404, 200]) metrics.countResponse(status);
  const lines = metrics.text([]).split('\n');
  expect(lines.filter((line) => /_total\{/.test(line))).toEqual([
    'ds_requests_finished_total{reason="stop"} 2',
    'ds_requests_finished_total{reason="length"} 1',
    'ds_http_responses_total{status="200"} 2',
    'ds_http_responses_total{status="404"} 1',
  ]);
  expect(valuesOf(metrics, 'time_to_first_token')[1]).toBe(3);
});
