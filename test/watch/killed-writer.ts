// Writes rows until it is killed; prints the number of each.
import { EventLog } from '../../lib/watch/event-log.js';

const log = new EventLog(process.argv[2] as string);
let step = 0;
setInterval(() => {
  step++;
  log.write({ e: 'row', track: 'train', step, values: { loss: 1 / step, text: step } });
  process.stdout.write(`${step}\n`);
}, 10);
