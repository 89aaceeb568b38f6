// chat_test.mjs: the chat page in headless Chromium. usage: node chat_test.mjs BUILD [CASE]; pictures go to BUILD/web-chat.
import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { build, run, serve, until } from './support.mjs';

const require = createRequire(path.resolve(build, 'npm-web', 'x.js'));
const { chromium } = require('playwright-core');
const server = await serve();
const profile = mkdtempSync(path.join(tmpdir(), 'duckd-chat-'));
const pictures = path.join(build, 'web-chat');
mkdirSync(pictures, { recursive: true });
const context = await chromium.launchPersistentContext(profile, {
    executablePath: '/usr/bin/chromium', headless: true, viewport: { width: 1100, height: 720 }, locale: 'en-US',
    args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
});
const page = await context.newPage();
const complaints = [];
page.on('pageerror', (e) => complaints.push(e.message));
page.on('console', (m) => { if (m.type() === 'error') complaints.push(m.text()); });
page.on('request', (r) => { if (!r.url().startsWith(server.url) && !r.url().startsWith('data:')) complaints.push(`asks for ${r.url()}`); });

const duck = 'A duck is a small wild or domesticated web-footed broad-billed swimming bird usually having a depressed body and short legs.';
const last = () => page.locator('.turn.assistant').last();
const done = () => page.waitForFunction(() => ['Send', '发送'].includes(document.getElementById('go').textContent));
async function say(text) {
    await page.fill('#text', text);
    await page.keyboard.press('Enter');
    await done();
    await page.waitForTimeout(50);
}

const failed = await run({
    async 'send and stream'() {
        await page.goto(server.url);
        await say('What is a duck?');
        assert.equal((await last().textContent()).trim(), duck);
        assert.match(await page.textContent('#figures'), /TTFT \d+ ms · [\d.]+ tok\/s · drafts accepted \d+% · \d+\/\d+ cached/);
        await page.screenshot({ path: path.join(pictures, 'first.png') });
    },
    async 'second turn, from the cache'() {
        await page.click('#new');
        await say('My name is Anna. What is 7 times 8?');
        await say('What is my name?');
        assert.match(await last().textContent(), /Anna/);
        const [, cached, prompt] = (await page.textContent('#figures')).match(/(\d+)\/(\d+) cached/).map(Number);
        assert.ok(cached > 8 && cached < prompt);
    },
    async 'stop'() {
        await page.route('**/v1/chat/completions', async (route) => {
            const body = { ...route.request().postDataJSON(), logit_bias: { 1: -100 } };
            await route.continue({ postData: JSON.stringify(body) });
        });
        await page.fill('#text', 'Tell me a short story about a cat.');
        await page.keyboard.press('Enter');
        await page.waitForFunction(() => document.querySelector('.turn.assistant:last-child')?.textContent.length > 40);
        assert.equal(await page.textContent('#go'), 'Stop');
        await page.keyboard.press('Escape');
        await done();
        await page.unroute('**/v1/chat/completions');
        await until('it says so', async () => (await last().textContent()).includes('(stopped)'));
        await until('the lane is free', async () => (await (await fetch(`${server.url}/metrics.json`)).json()).running === 0);
    },
    async 'reload keeps the conversations'() {
        const turns = await page.locator('.turn').count();
        await page.reload();
        assert.equal(await page.locator('.turn').count(), turns);
        assert.equal(await page.locator('#list li').count(), 2);
        await page.locator('#list .open').last().click();
        assert.equal((await last().textContent()).trim(), duck);
    },
    async 'thoughts, settings'() {
        await page.click('#new');
        await page.click('#settings');
        await page.check('#s-think');
        await page.click('dialog button');
        await say('Is 91 prime?');
        assert.match(await last().locator('details').textContent(), /divisible by 7/);
        assert.match(await last().textContent(), /No, 91 is not prime/);
        await page.click('#settings');
        await page.uncheck('#s-think');
        await page.click('dialog button');
    },
    async 'what a model writes is text, never markup'() {
        await page.evaluate(() => { window.hit = false; });
        const evil = '<img src=x onerror="window.hit=true"> <script>window.hit=true</scr' + 'ipt>\n\n**bold** `code` [l](https://a.example) [j](javascript:window.hit=true)\n\n```js\nlet x = "<b>";\n```\n\n- one\n- two\n\n| a | b |\n|---|---|\n| 1 | 2 |';
        await page.route('**/v1/chat/completions', (route) => route.fulfill({ contentType: 'text/event-stream',
            body: `data: ${JSON.stringify({ choices: [{ delta: { content: evil }, finish_reason: null }] })}\n\ndata: [DONE]\n\n` }));
        await say('evil');
        await page.unroute('**/v1/chat/completions');
        assert.equal(await page.evaluate(() => window.hit), false);
        assert.equal(await last().locator('img, script').count(), 0);
        assert.match(await last().textContent(), /<img src=x onerror/);
        assert.equal(await last().locator('strong').textContent(), 'bold');
        assert.equal(await last().locator('pre code').textContent(), 'let x = "<b>";');
        assert.equal(await last().locator('li').count(), 2);
        assert.equal(await last().locator('td').count(), 2);
        assert.equal(await last().locator('a').count(), 1);
    },
    async 'Chinese, at phone width'() {
        await page.setViewportSize({ width: 390, height: 780 });
        await page.click('#lang');
        await page.click('#menu');
        await page.click('#new');
        await say('你好');
        assert.equal((await last().textContent()).trim(), '你好！我是小鸭，一个很小的语言模型。');
        assert.equal(await page.textContent('#go'), '发送');
        assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), 'nothing sticks out');
        await page.screenshot({ path: path.join(pictures, 'phone.png') });
        await page.click('#menu');
        await page.waitForFunction(() => /鸭群/.test(document.getElementById('flock').textContent));
        // Nothing on the page stays in the other language until the server answers again.
        const flock = () => page.evaluate(() => { document.getElementById('lang').click(); return document.getElementById('flock').textContent; });
        assert.match(await flock(), /^Flock: 1 duck · \d running/);
        assert.match(await flock(), /^鸭群: 1 只鸭子 · \d 运行/);
        await page.screenshot({ path: path.join(pictures, 'phone-menu.png') });
        await page.keyboard.press('Escape');
        await page.click('#lang');
        await page.setViewportSize({ width: 1100, height: 720 });
    },
    async 'an error is shown'() {
        await page.click('#new');
        await say('duck '.repeat(6000));
        assert.match(await last().locator('.error').textContent(), /maximum context length/);
        complaints.splice(0, complaints.length, ...complaints.filter((c) => !/status of 400/.test(c)));
    },
    async 'by keyboard alone'() {
        await page.keyboard.press('Alt+n');
        await page.keyboard.type('Hello');
        await page.keyboard.press('Enter');
        await done();
        await page.waitForFunction(() => /Duckling/.test(document.querySelector('.turn.assistant')?.textContent));
        await page.keyboard.press('Alt+n');
        await page.locator('#list .open').last().click();
        await page.waitForFunction(() => document.querySelectorAll('#flock tr').length > 0);
        await page.screenshot({ path: path.join(pictures, 'desktop.png') });
    },
    async 'no complaints, nothing fetched from elsewhere'() {
        assert.deepEqual(complaints, []);
    },
});
await context.close();
rmSync(profile, { recursive: true, force: true });
await server.stop();
process.exit(failed ? 1 : 0);
