// A program that leaves out a wait, for the watch of stream orders to find.
import { cpu } from '../../lib/runtime/device.js';
import { Stream } from '../../lib/runtime/stream.js';
import { copyAll } from '../../lib/tensor/flat.js';
import { zeros } from '../../lib/tensor/index.js';

const device = cpu();
const [from, to] = [zeros([4], { device }).keep(), zeros([4], { device }).keep()];
const beside = Stream.create(device);
device.synchronize();
copyAll(to, from, beside);
to.clone();
