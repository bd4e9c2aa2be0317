// Captures the standard output of a function.

export async function captureOutput(body: () => Promise<void>): Promise<string> {
  const { write } = process.stdout;
  let text = '';
  process.stdout.write = (chunk: string | Uint8Array): boolean => {
    text += chunk;
    return true;
  };
  try {
    await body();
  } finally {
    process.stdout.write = write;
  }
  return text;
}
