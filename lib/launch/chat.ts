// `ds chat`: a conversation in the terminal with the model of a folder.
import { CHAT, CHAT_SAMPLING } from '../serve/chat-options.js';
import { chat, openEngine } from '../serve/index.js';
import { fromFlags } from './declared-flags.js';
import { type EngineFlags, readEngineOptions, readTemplate } from './engine-flags.js';

/** Chats until the input ends. Returns the exit code. Throws as chat() and initInference() do. */
export async function chatCommand(folder: string, flags: EngineFlags): Promise<number> {
  const sampling = fromFlags(CHAT_SAMPLING, flags);
  const { system } = fromFlags(CHAT, flags);
  const engine = await openEngine(folder, readEngineOptions(flags));
  try {
    await chat(engine, { system, sampling, chatTemplate: readTemplate(flags.chatTemplate) });
  } finally {
    await engine.destroy();
  }
  return 0;
}
