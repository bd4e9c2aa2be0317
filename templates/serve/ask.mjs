// @ts-check
// Sends a question to the server and prints the answer while it comes: node ask.mjs [QUESTION]
const { OPENAI_BASE_URL: url = 'http://127.0.0.1:8000/v1' } = process.env;
const [content = 'What is a token?'] = process.argv.slice(2);

const response = await fetch(`${url}/chat/completions`, {
  method: 'POST',
  headers: { 'content-type': 'application/json' },
  body: JSON.stringify({
    model: 'model', // The name of the folder.
    messages: [{ role: 'user', content }],
    temperature: 0,
    stream: true,
  }),
}).catch(({ message, cause }) => {
  console.error(`${url}: ${cause?.code ?? message}. Start the server first: npm start`);
  process.exit(1);
});
if (!response.ok || !response.body) throw new Error(await response.text());

let rest = ''; // The incomplete last line.
for await (const bytes of response.body.pipeThrough(new TextDecoderStream())) {
  const lines = (rest + bytes).split('\n');
  rest = lines.pop() ?? '';
  for (const line of lines) {
    if (!line.startsWith('data: {')) continue;
    const [choice] = JSON.parse(line.slice('data: '.length)).choices;
    process.stdout.write(choice?.delta.content ?? '');
  }
}
process.stdout.write('\n');
