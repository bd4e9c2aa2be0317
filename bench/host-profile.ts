// Profiles the host: lists the functions of this thread with the most self time, by V8's sampling
// profiler.
import { Session } from 'node:inspector/promises';

/** A function and its own milliseconds, without the functions that it called. */
export interface OwnTime {
  function: string;
  ms: number;
}

const MOST = 40;

/** Returns the result of `run` and the functions with the most time, in falling order. */
export async function hostProfile<T>(run: () => Promise<T>): Promise<[T, OwnTime[]]> {
  const session = new Session();
  session.connect();
  await session.post('Profiler.enable');
  await session.post('Profiler.setSamplingInterval', { interval: 50 });
  await session.post('Profiler.start');
  const result = await run();
  const { profile } = await session.post('Profiler.stop');
  session.disconnect();
  const { nodes, samples = [], timeDeltas = [] } = profile;
  const names = new Map(
    nodes.map(({ id, callFrame: { functionName, url, lineNumber } }) => {
      const file = url.split('/').slice(-2).join('/');
      return [id, `${functionName || '(nameless)'} ${file}:${lineNumber + 1}`];
    }),
  );
  const times = new Map<string, number>();
  for (const [i, id] of samples.entries()) {
    const name = names.get(id) as string;
    times.set(name, (times.get(name) ?? 0) + (timeDeltas[i] as number) / 1000);
  }
  const sorted = [...times].sort(([, a], [, b]) => b - a).slice(0, MOST);
  return [result, sorted.map(([name, ms]) => ({ function: name, ms }))];
}
