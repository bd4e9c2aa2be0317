// One rank of an initialize() that fails because rank 0 cannot open its monitor. The rank stays
// until all have the error.
import { comm, type DsConfig, initialize, nn } from '../../lib/index.js';
import { gate } from '../comm/gate.js';

class Model extends nn.Module {
  readonly layer = new nn.Linear(3, 5);

  override forward(x: Parameters<nn.Linear['forward']>[0]) {
    return this.layer.call(x).mean();
  }
}

async function main(config: DsConfig): Promise<void> {
  const job = await comm.initDistributed({ device: 'cpu' });
  const { code, message } = await initialize({ model: new Model(), config, distributed: job }).then(
    () => ({ code: '', message: '' }),
    (error: { code: string; message: string }) => error,
  );
  await gate('told');
  await job.destroy();
  console.log(JSON.stringify({ code, message }));
}

void main(JSON.parse(process.argv[2] ?? '') as DsConfig);
