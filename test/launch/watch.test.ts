// Tests the port, the address and the end of `ds watch`.
import { watchCommand } from '../../lib/launch/watch.js';
import * as watch from '../../lib/watch/server.js';

/** Pages that listen nowhere: `taken` are the ports that other processes hold. */
function pages(taken: readonly number[]) {
  const close = jest.fn(async () => {});
  const ports: number[] = [];
  jest.spyOn(watch.WatchServer, 'start').mockImplementation(async ({ port }) => {
    ports.push(port);
    if (taken.includes(port)) throw new Error(`port ${port} is taken`);
    return { url: `http://there:${port}/`, close } as never;
  });
  return { ports, close };
}

afterEach(() => jest.restoreAllMocks());

/** Shows runs until SIGTERM. */
async function showPage(flags: { port?: number; host?: string }) {
  const [lines, errors]: [string[], string[]] = [[], []];
  jest.spyOn(console, 'log').mockImplementation((text) => void lines.push(text));
  jest.spyOn(console, 'error').mockImplementation((text) => void errors.push(text));
  const ended = watchCommand(['a', 'b'], { host: '127.0.0.1', ...flags });
  const isOver = ended.then(
    () => true,
    () => true,
  );
  const turn = () => new Promise<false>((resolve) => setImmediate(resolve, false));
  while (lines.length === 0 && !(await Promise.race([isOver, turn()])));
  process.emit('SIGTERM', 'SIGTERM');
  return { code: await ended, lines, errors };
}

test('the port is 6006, or a free one', async () => {
  const { ports, close } = pages([]);
  const { code, lines } = await showPage({});
  expect([code, ports, lines]).toEqual([0, [6006], ['watch a, b at http://there:6006/']]);
  expect(close).toHaveBeenCalledTimes(1);
});

test('a used default port is replaced by a free one', async () => {
  const { ports } = pages([6006]);
  expect(await showPage({})).toMatchObject({ code: 0, lines: ['watch a, b at http://there:0/'] });
  expect(ports).toEqual([6006, 0]);
});

test('a used --port is an error', async () => {
  const { ports } = pages([7000]);
  await expect(showPage({ port: 7000 })).rejects.toThrow('port 7000 is taken');
  expect(ports).toEqual([7000]);
});

test('an address that other machines reach warns of missing encryption', async () => {
  pages([]);
  expect((await showPage({ host: '0.0.0.0' })).errors).toEqual([
    expect.stringMatching(/not encrypted. Use an ssh tunnel/),
  ]);
  expect((await showPage({ host: '127.0.0.1' })).errors).toEqual([]);
});
