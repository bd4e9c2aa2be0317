// Consumer of the installed package: its types resolve, compiled once as CommonJS and once as ESM.
import { DsError, type Engine, initialize, nn } from '@ds/native';

export async function build(): Promise<Engine> {
  const model: nn.Module = new nn.models.GPT2(nn.models.GPT2.config('tiny'));
  const { engine } = await initialize({ model, config: { train_batch_size: 1 } });
  return engine;
}

export const code = (error: unknown): string => (error instanceof DsError ? error.code : 'other');
