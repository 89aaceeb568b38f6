// tools_test.mjs: calls of tools, as the `openai` package and the Vercel AI SDK see them, in both formats. The model
// is scripted (scripted_server.c): it says what stands between [[ and ]]. usage: node tools_test.mjs BUILD [CASE]
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import path from 'node:path';
import { build, post, run, serve, serveScript } from './support.mjs';

const require = createRequire(path.resolve(build, 'npm-web', 'x.js'));
const { OpenAI } = require('openai');
const { generateText, streamText, tool, jsonSchema, stepCountIs } = require('ai');
const { createOpenAICompatible } = require('@ai-sdk/openai-compatible');

const tools = [
    { type: 'function', function: { name: 'weather', description: 'Says how it is', parameters: { type: 'object', properties: { city: { type: 'string' }, days: { type: 'integer' } }, required: ['city'] } } },
    { type: 'function', function: { name: 'now', parameters: { type: 'object', properties: {} } } },
];
const dsml = {
    call: (name, args) => `<｜DSML｜invoke name="${name}">\n${Object.entries(args).map(([k, v]) =>
        `<｜DSML｜parameter name="${k}" string="${typeof v === 'string'}">${typeof v === 'string' ? v : JSON.stringify(v)}</｜DSML｜parameter>\n`).join('')}</｜DSML｜invoke>\n`,
    block: (calls) => `\n\n<｜DSML｜function_calls>\n${calls.map(([n, a]) => dsml.call(n, a)).join('')}</｜DSML｜function_calls>`,
    broken: '\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke nome="x">',
    named: '<｜DSML｜parameter name="city" string="true">Rome</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
    required: 'now">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
    name: 'dsml',
};
const v31 = {
    block: (calls) => `<｜tool▁calls▁begin｜>${calls.map(([n, a]) => `<｜tool▁call▁begin｜>${n}<｜tool▁sep｜>${JSON.stringify(a)}<｜tool▁call▁end｜>`).join('')}<｜tool▁calls▁end｜>`,
    broken: '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>\nweather',
    named: '{"city": "Rome"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    required: 'now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    name: 'v31',
};
const two = [['weather', { city: 'New "York" 北京 🦆', days: 2 }], ['now', {}]];

function cases(server, f) {
    const client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'any', maxRetries: 0 });
    const provider = createOpenAICompatible({ name: 'duckd', baseURL: `${server.url}/v1`, includeUsage: true });
    const say = (text, more = {}) => ({ model: 'script', temperature: 0, tools, messages: [{ role: 'user', content: `[[${text}]]` }], ...more });
    const ask = (text, more) => client.chat.completions.create(say(text, more));
    const sdk = {
        weather: tool({ description: 'Says how it is', inputSchema: jsonSchema(tools[0].function.parameters), execute: async ({ city }) => `[[It is mild in ${city}.]]` }),
        now: tool({ inputSchema: jsonSchema(tools[1].function.parameters), execute: async () => 'noon' }),
    };
    return {
        async 'two calls, whole'() {
            const r = await ask(`I look.${f.block(two)}`);
            const { message, finish_reason } = r.choices[0];
            assert.equal(finish_reason, 'tool_calls');
            assert.equal(message.content, 'I look.');
            assert.deepEqual(message.tool_calls.map((c) => [c.type, c.function.name, JSON.parse(c.function.arguments)]), two.map(([n, a]) => ['function', n, a]));
            assert.equal(new Set(message.tool_calls.map((c) => c.id)).size, 2);
            assert.equal((await ask(f.block(two.slice(1)))).choices[0].message.content, null);
        },
        async 'two calls, as a stream'() {
            const stream = await ask(`I look.${f.block(two)}`, { stream: true });
            const calls = [], reasons = [];
            let text = '', pieces = 0;
            for await (const chunk of stream) {
                for (const c of chunk.choices) {
                    text += c.delta.content ?? '';
                    if (c.finish_reason !== null) reasons.push(c.finish_reason);
                    for (const t of c.delta.tool_calls ?? []) {
                        assert.ok(Number.isInteger(t.index));
                        if (!calls[t.index]) {
                            assert.equal(t.index, calls.length);
                            assert.equal(t.type, 'function');
                            assert.match(t.id, /^call_./);
                            calls.push({ name: t.function.name, text: '' });
                        } else {
                            assert.deepEqual(Object.keys(t), ['index', 'function']);
                            assert.deepEqual(Object.keys(t.function), ['arguments']);
                            pieces++;
                        }
                        calls[t.index].text += t.function.arguments;
                    }
                }
            }
            assert.equal(text, 'I look.');
            assert.deepEqual(reasons, ['tool_calls']);
            assert.deepEqual(calls.map((c) => [c.name, JSON.parse(c.text)]), two);
            assert.ok(pieces > 3, `arguments came in ${pieces} pieces`);
        },
        async 'the helper that collects a stream, and runs tools'() {
            const runner = client.chat.completions.runTools({
                ...say(f.block([['weather', { city: 'Rome' }]])), stream: true,
                tools: [{ type: 'function', function: { ...tools[0].function, parse: JSON.parse, function: ({ city }) => `[[Mild in ${city}.]]` } }],
            });
            assert.equal(await runner.finalContent(), 'Mild in Rome.');
        },
        async 'thoughts come before calls'() {
            const r = await ask(`I must look.</think>${f.block(two)}`, { chat_template_kwargs: { thinking: true } });
            assert.equal(r.choices[0].message.reasoning_content, 'I must look.');
            assert.equal(r.choices[0].message.tool_calls.length, 2);
        },
        async 'what is no call is text'() {
            for (const stream of [false, true]) {
                const r = stream ? await client.chat.completions.stream(say(`x${f.broken} y`)).finalChatCompletion() : await ask(`x${f.broken} y`);
                assert.equal(r.choices[0].message.content, `x${f.broken} y`);
                assert.equal(r.choices[0].finish_reason, 'stop');
                assert.ok(!r.choices[0].message.tool_calls?.length);
            }
            const cut = await ask(f.block(two), { max_tokens: 30 });
            assert.equal(cut.choices[0].finish_reason, 'length');
        },
        async 'choices: none, required, one by name, one at a time'() {
            const none = await ask(f.block(two), { tool_choice: 'none' });
            assert.ok(!none.choices[0].message.tool_calls && none.choices[0].message.content.includes('weather'));
            const required = await ask(f.required, { tool_choice: 'required' });
            assert.equal(required.choices[0].message.tool_calls[0].function.name, 'now');
            assert.equal(required.choices[0].finish_reason, 'tool_calls');
            for (const stream of [false, true]) {
                const body = { tool_choice: { type: 'function', function: { name: 'weather' } } };
                const r = stream ? await client.chat.completions.stream(say(f.named, body)).finalChatCompletion() : await ask(f.named, body);
                assert.deepEqual(r.choices[0].message.tool_calls.map((c) => [c.function.name, JSON.parse(c.function.arguments)]), [['weather', { city: 'Rome' }]]);
            }
            const one = await ask(f.block(two), { parallel_tool_calls: false });
            assert.equal(one.choices[0].message.tool_calls.length, 1);
        },
        async 'results go where their calls are, history is read'() {
            const calls = two.map(([name, args], i) => ({ id: `c${i}`, type: 'function', function: { name, arguments: JSON.stringify(args) } }));
            const r = await client.chat.completions.create({ model: 'script', temperature: 0, tools, messages: [
                { role: 'user', content: 'How is it?' }, { role: 'assistant', content: null, tool_calls: calls },
                { role: 'tool', tool_call_id: 'c1', content: '[[in second place]]' }, { role: 'tool', tool_call_id: 'c0', content: '[[in first place]]' }] });
            assert.equal(r.choices[0].message.content, 'in second place');
        },
        async 'the AI SDK runs a loop of calls'() {
            const options = { model: provider('script'), temperature: 0, maxRetries: 0, tools: sdk, stopWhen: stepCountIs(4), prompt: `[[${f.block([['weather', { city: 'Rome' }]])}]]` };
            const r = await generateText(options);
            assert.equal(r.text, 'It is mild in Rome.');
            assert.deepEqual(r.steps.map((s) => s.finishReason), ['tool-calls', 'stop']);
            const s = streamText(options);
            let text = '';
            for await (const part of s.textStream) text += part;
            assert.equal(text, 'It is mild in Rome.');
            assert.deepEqual((await s.steps)[0].toolCalls.map((c) => [c.toolName, c.input]), [['weather', { city: 'Rome' }]]);
            const forced = await generateText({ ...options, prompt: `[[${f.required}]]`, toolChoice: 'required', stopWhen: stepCountIs(1) });
            assert.equal(forced.toolCalls[0].toolName, 'now');
        },
        async 'bad requests say what is wrong'() {
            const bad = async (more, pattern) => {
                const r = await post(server, '/v1/chat/completions', say('x', more));
                assert.equal(r.status, 400);
                assert.match((await r.json()).error.message, pattern);
            };
            await bad({ tools: 'weather' }, /tools must be an array/);
            await bad({ tools: [{ type: 'function', function: { name: 'a b' } }] }, /tools\[0\] needs function\.name/);
            await bad({ tools: [{ type: 'search' }] }, /no tool of type function/);
            await bad({ tool_choice: { type: 'function', function: { name: 'other' } } }, /'other', which is no tool/);
            await bad({ tools: undefined, tool_choice: 'required' }, /tool_choice needs tools/);
            await bad({ tool_choice: 'required', chat_template_kwargs: { thinking: true } }, /leaves no room for thoughts/);
            await bad({ functions: [{ name: 'f' }] }, /called as tools/);
            await bad({ function_call: { name: 'f' } }, /called as tools/);
            await bad({ messages: [{ role: 'user', content: 'x' }, { role: 'tool', content: 'y' }] }, /result number 1, but the answer before it calls 0/);
            await bad({ messages: [{ role: 'assistant', tool_calls: [{ function: { name: 'f', arguments: '{' } }] }] }, /text of a JSON object/);
            await bad({ messages: [{ role: 'assistant', tool_calls: [{ function: { name: 'f', arguments: `{"a":${'['.repeat(1000)}${']'.repeat(1000)}}` } }] }] }, /function\.arguments of call 0 of messages\[0\] are nested deeper than 1000/);
        },
    };
}

let failed = 0;
for (const format of [dsml, v31]) {
    const server = await serveScript(...(format === v31 ? ['v31'] : []));
    console.log(`-- ${format.name}`);
    failed += await run(cases(server, format));
    assert.deepEqual(await server.stop(), { code: 0, signal: null });
}
// duckling knows no tools: whatever it makes of them, the answer is well-formed.
const server = await serve();
failed += await run({
    async 'duckling with tools'() {
        for (const tool_choice of ['auto', 'required', { type: 'function', function: { name: 'weather' } }]) {
            const r = await (await post(server, '/v1/chat/completions', { messages: [{ role: 'user', content: 'What is a duck?' }], tools, tool_choice, temperature: 0, max_tokens: 40 })).json();
            assert.ok(['stop', 'length', 'tool_calls'].includes(r.choices[0].finish_reason), JSON.stringify(r));
        }
    },
});
await server.stop();
process.exit(failed ? 1 : 0);
