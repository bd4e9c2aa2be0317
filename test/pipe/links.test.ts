// Tests the streams of transfers between stages: compute overlaps all of them.
import type { Distributed } from '../../lib/comm/index.js';
import { ProcessGroup } from '../../lib/comm/process-group.js';
import { Links } from '../../lib/pipe/links.js';
import { lower } from '../../lib/pipe/lower.js';
import { ONE_F_ONE_B } from '../../lib/pipe/schedules.js';
import { cpu } from '../../lib/runtime/device.js';
import type { Collective, Tickets } from '../../lib/runtime/job.js';
import { Event, Stream } from '../../lib/runtime/stream.js';
import { Tensor } from '../../lib/tensor/index.js';

/** Logs operations on streams, in order; compute is stream 0, others count up. */
class Log {
  readonly lines: string[] = [];
  private readonly streams: Stream[] = [cpu().compute];
  private readonly marks = new Map<Event, number>();

  number(stream: Stream): number {
    if (!this.streams.includes(stream)) this.streams.push(stream);
    return this.streams.indexOf(stream);
  }

  watch(): void {
    jest.spyOn(Event.prototype, 'record').mockImplementation(function (this: Event, stream) {
      log.marks.set(this, log.number(stream));
      return this;
    });
    jest.spyOn(Stream.prototype, 'wait').mockImplementation(function (this: Stream, event) {
      log.lines.push(`${log.number(this)} waits for ${log.marks.get(event)}`);
    });
  }
}

let log: Log;

/** Collectives that never complete; they log their stream and the waiting streams. */
const tickets = (): Tickets => ({
  start: ({ kind }: Collective, stream) => log.lines.push(`${kind} on ${log.number(stream)}`),
  wait: (_, stream) => void log.lines.push(`${log.number(stream)} waits for a transfer`),
  synchronize: () => {},
  done: () => false,
  giveUp: () => {},
});

/** Stage 0 of two, without a peer. */
async function firstStage(): Promise<Links> {
  const ranks = [0, 1];
  const group = () => new ProcessGroup('pair', ranks, 0, cpu(), tickets());
  const job = {
    rank: 0,
    store: null,
    timeout: 1000,
    world: { device: cpu() },
    mesh: { shape: { ranksAlong: () => ranks, others: () => [] }, place: () => 0 },
    newGroup: async () => group(),
    nextName: (label: string) => label,
  } as unknown as Distributed;
  return Links.open(job, lower(ONE_F_ONE_B, 2, 2), false);
}

beforeEach(() => {
  log = new Log();
  log.watch();
});
afterEach(() => jest.restoreAllMocks());

test('a send and a receive have their own streams, which wait for compute but do not delay it', async () => {
  const links = await firstStage();
  const output = Tensor.empty([2, 3], 'f32', cpu());
  await links.sendValues({ kind: 'sendF', stage: 0, micro: 0, peer: 1 }, output, 'train');
  const arriving = links.receiveGradients({ kind: 'recvB', stage: 0, micro: 0, peer: 1 }, [output]);
  expect(log.lines).toEqual(['1 waits for 0', 'send on 1', '2 waits for 0', 'recv on 2']);
  log.lines.length = 0;
  links.freeComplete();
  expect(log.lines).toEqual([]);
  const [gradient] = arriving.take() as [Tensor];
  expect(log.lines).toEqual(['0 waits for a transfer']);
  for (const tensor of [gradient, output]) tensor.dispose();
  links.drop();
});

test('of several micro-batches, the transfers of one direction share a stream', async () => {
  const links = await firstStage();
  const output = Tensor.empty([2], 'f32', cpu());
  for (const micro of [0, 1]) {
    await links.sendValues({ kind: 'sendF', stage: 0, micro, peer: 1 }, output, 'train');
  }
  expect(log.lines.filter((line) => line.startsWith('send'))).toEqual(['send on 1', 'send on 1']);
  output.dispose();
  links.drop();
});
