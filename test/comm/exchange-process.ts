// One rank that exchanges vectors of one bit per element, and compares each round with a simulation
// of all ranks.
import {
  CommsLogger,
  CompressedExchange,
  CompressedLayout,
  initDistributed,
} from '../../lib/comm/index.js';
import { Tensor } from '../../lib/index.js';
import { ExchangeSimulation, type Levels, type Piece } from '../support/sign-exchange.js';

export interface ExchangeJob {
  kind: 'cpu' | 'cuda';
}

export interface ExchangeReport {
  failures: string[];
  rounds: number;
  /** Bytes that this rank has sent in one exchange: in the log, and by the layout. */
  logged: number;
  formula: number;
}

const ROUNDS = 4;
const failures: string[] = [];

/** Odd lengths with gaps between them; one piece spans the parts of several owners. */
function piecesOf(numel: number): Piece[] {
  const pieces: Piece[] = [];
  const lengths = [1, 63, 0, 130, Math.floor(numel / 2), 7, 513];
  let start = 0;
  for (const length of lengths) {
    if (length > 0 && start + length <= numel) pieces.push({ start, numel: length });
    start += Math.ceil((length + 1) / 64) * 64;
  }
  return pieces;
}

/** Rows of 5 elements and of one, which may begin inside a byte. */
function rowsOf(numel: number): Piece[] {
  const rows = Array.from({ length: 77 }, (_, i) => ({ start: 5 * i, numel: 5 }));
  const single = Array.from({ length: 41 }, (_, i) => ({ start: 448 + i, numel: 1 }));
  return [...rows, ...single, { start: 512, numel: numel - 600 }];
}

/** Vector of rank `rank` in a round, with random values between pieces. */
function vectorOf(rank: number, round: number, numel: number): Float32Array {
  return Float32Array.from({ length: numel }, (_, i) => {
    const hash = Math.imul((i + 1) * 2654435761 + rank * 40503 + round * 977, 2246822519) >>> 8;
    const unit = (hash % 65536) / 32768 - 1;
    return hash % 31 === 0 ? 0 : unit * (1 + (i % 7)) * 10 ** ((i % 5) - 3);
  });
}

function compare(name: string, got: Tensor, want: Float32Array): void {
  const values = got.toArray();
  const wrong = values.findIndex((x, i) => !Object.is(x + 0, (want[i] as number) + 0));
  if (wrong >= 0) failures.push(`${name}[${wrong}] is ${values[wrong]}, not ${want[wrong]}`);
}

async function main(): Promise<void> {
  const job = JSON.parse(process.argv[2] ?? '') as ExchangeJob;
  const distributed = await initDistributed(job.kind === 'cpu' ? { device: 'cpu' } : {});
  const { world } = distributed;
  const { rank, size, device } = world;
  const numel = 64 * size * 37;
  const control = Tensor.from([1, 1, 0, 1], { device });
  const skipped = Tensor.from([1, 0, 0, 0], { device });
  let sent = { logged: 0, formula: 0 };
  const problems: [Levels, Piece[]][] = [
    ['rms', piecesOf(numel)],
    ['means', rowsOf(numel)],
  ];
  for (const [levels, pieces] of problems) {
    const layout = new CompressedLayout(numel, size, pieces);
    const exchange = new CompressedExchange(world, device, { layout, levels, purpose: levels });
    const simulation = new ExchangeSimulation(numel, size, pieces, levels);
    for (let round = 0; round < ROUNDS; ++round) {
      const localValues = vectorOf(rank, round, numel);
      const vector = Tensor.from(localValues, { device });
      const logger = new CommsLogger();
      world.logger = logger;
      // A skipped step does not change the errors.
      const isSkipped = round === 2;
      exchange.send(vector, isSkipped ? skipped : control);
      exchange.average(isSkipped ? skipped : control);
      exchange.receive(vector);
      world.logger = null;
      if (!isSkipped) {
        const values = Array.from({ length: size }, (_, other) => vectorOf(other, round, numel));
        compare(`${levels} ${round} result`, vector, simulation.average(values));
      }
      const at = rank * layout.chunk;
      const owned = simulation.owners.slice(at, at + layout.chunk);
      compare(`${levels} ${round} own error`, exchange.ownError, simulation.workers[rank]!);
      compare(`${levels} ${round} owner's error`, exchange.ownerError, owned);
      const logged = logger.totals().reduce((sum, { kind, bytes, count }) => {
        // The log counts all slots of an all-to-all, and one rank's part of an all-gather.
        const each = kind === 'allToAll' ? (bytes * (size - 1)) / size : bytes * (size - 1);
        return sum + count * each;
      }, 0);
      sent = { logged, formula: layout.bytesSent };
      if (logged !== layout.bytesSent) failures.push(`${levels}: ${logged} bytes logged`);
      vector.dispose();
    }
    exchange.reset();
    const zero = new Float32Array(numel);
    compare(`${levels} own error after reset`, exchange.ownError, zero);
    exchange.dispose();
  }
  control.dispose();
  skipped.dispose();
  const report: ExchangeReport = { failures, rounds: ROUNDS * problems.length, ...sent };
  await distributed.destroy();
  console.log(JSON.stringify(report));
}

void main();
