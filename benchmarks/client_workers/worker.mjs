// The same as worker.py for the clients of JavaScript: onnxruntime-node, onnxruntime-web, transformers.js.
//
//     node worker.mjs CLIENT FOLDER OPSET          NODE_MODULES says where they are installed
import { existsSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [client, folder, opset] = process.argv.slice(2);
const require = createRequire(join(resolve(process.env.NODE_MODULES), "index.js"));
const load = async (name) => import(pathToFileURL(require.resolve(name)).href);
const spec = JSON.parse(readFileSync(join(folder, "case.json"), "utf8"));
const graph = join(folder, `graph-${opset}`);
const steps = join(folder, `steps-${opset}`);
const pair = join(folder, "pair");
const say = (found) => process.stdout.write(JSON.stringify(found) + "\n");

const size = (dims) => dims.reduce((a, b) => a * b, 1);
const ARRAYS = {
  float32: (x) => Float32Array.from(x),
  int64: (x) => BigInt64Array.from(x, BigInt),
  bool: (x) => Uint8Array.from(x),
};
const flat = (x) => x.data.flat(Infinity).map(Number);

function largest(outputs) {
  let most = 0;
  let compared = 0;
  for (const [name, wanted] of Object.entries(spec.outputs)) {
    if (!outputs[name]) continue;
    const found = outputs[name].data;
    if (found.length !== size(wanted.dims)) throw new Error(`${name} has ${outputs[name].dims}`);
    flat(wanted).forEach((y, i) => (most = Math.max(most, Math.abs(Number(found[i]) - y))));
    compared += found.length;
  }
  if (!compared) throw new Error(`no output is called ${Object.keys(spec.outputs)}`);
  if (!Number.isFinite(most)) throw new Error(`an output is not finite`);  // JSON has no NaN
  return most;
}

// --- a session by itself ---

async function plain(ort, open) {
  const tensor = (type, data, dims) => new ort.Tensor(type, ARRAYS[type](data), dims);
  const fed = (given) => Object.fromEntries(Object.entries(given).map(([n, x]) => [n, tensor(x.type, flat(x), x.dims)]));
  const run = async (session, feed) =>
    session.run(Object.fromEntries(session.inputNames.map((name) => [name, feed[name]])));
  const found = { difference: largest(await run(await open(join(graph, "model.onnx")), fed(spec.inputs))) };
  say(found);
  if (!spec.tokens.length) return;
  const step = await open(join(steps, "model.onnx"));
  const kept = step.outputNames.slice(1).map((n) => n.replace("present.", "past_key_values."));
  const sizes = { batch_size: 1, batch: 1, past_sequence_length: 0 };
  let state = {};
  for (const name of kept) {
    const meta = spec.state[name];
    const dims = meta.map((d) => (typeof d === "number" ? d : sizes[d]));
    state[name] = tensor("float32", new Array(size(dims)).fill(0), dims);
  }
  const once = Object.keys(spec.source).length
    ? await run(await open(join(steps, "encoder.onnx")), fed(spec.source))
    : {};
  let ids = [...spec.prompt];
  let past = 0;
  for (let i = 0; i < spec.tokens.length; i++) {
    const fresh = ids.slice(past);
    const feed = {
      input_ids: tensor("int64", fresh, [1, fresh.length]),
      attention_mask: tensor("int64", new Array(ids.length).fill(1), [1, ids.length]),
      position_ids: tensor("int64", fresh.map((_, j) => past + j), [1, fresh.length]),
      past_length: tensor("int64", [past], [1]),
      ...once,
      ...state,
    };
    const made = await run(step, feed);
    state = Object.fromEntries(kept.map((n) => [n, made[n.replace("past_key_values.", "present.")]]));
    const logits = made[step.outputNames[0]];
    const vocab = logits.dims.at(-1);
    const last = Array.from(logits.data.slice(logits.data.length - vocab));
    past = ids.length;
    ids.push(last.indexOf(Math.max(...last)));
  }
  found.tokens = ids.slice(spec.prompt.length);
  say(found);
}

// --- transformers.js ---

async function transformers() {
  const js = await load("@huggingface/transformers");
  js.env.allowRemoteModels = false;
  js.env.localModelPath = "";
  const options = { dtype: "fp32", device: "cpu", subfolder: "" };
  const tensor = (x) => new js.Tensor(x.type, ARRAYS[x.type](flat(x)), x.dims);
  if (existsSync(join(steps, "config.json"))) {
    const model = await js.AutoModelForCausalLM.from_pretrained(steps, options);
    const prompt = { type: "int64", data: spec.prompt, dims: [1, spec.prompt.length] };
    const mask = { type: "int64", data: spec.prompt.map(() => 1), dims: [1, spec.prompt.length] };
    const made = await model.generate({
      inputs: tensor(prompt),
      attention_mask: tensor(mask),
      max_new_tokens: spec.tokens.length,
      do_sample: false,
    });
    return say({ tokens: made.tolist()[0].slice(spec.prompt.length).map(Number) });
  }
  if (existsSync(pair)) {
    const model = await js.AutoModelForSeq2SeqLM.from_pretrained(pair, options);
    const made = await model.generate({
      ...Object.fromEntries(Object.entries(spec.source).map(([n, x]) => [n, tensor(x)])),
      decoder_input_ids: tensor({ type: "int64", data: spec.prompt, dims: [1, spec.prompt.length] }),
      max_new_tokens: spec.tokens.length,
      do_sample: false,
    });
    return say({ tokens: made.tolist()[0].slice(spec.prompt.length).map(Number) });
  }
  const { architectures } = JSON.parse(readFileSync(join(graph, "config.json"), "utf8"));
  const task = architectures[0].split("For")[1];
  const model = await js[task ? `AutoModelFor${task}` : "AutoModel"].from_pretrained(graph, options);
  const given = Object.fromEntries(Object.entries(spec.inputs).map(([n, x]) => [n, tensor(x)]));
  say({ difference: largest(await model(given)) });
}

if (client === "onnxruntime-node") {
  const ort = await load("onnxruntime-node");
  const quiet = { logSeverityLevel: 3, intraOpNumThreads: 1 };
  await plain(ort.default ?? ort, (path) => (ort.default ?? ort).InferenceSession.create(path, quiet));
} else if (client === "onnxruntime-web") {
  const ort = await load("onnxruntime-web");
  ort.env.wasm.numThreads = 1;
  ort.env.logLevel = "error";
  const beside = (path) => {
    const file = join(path, "..", "model.onnx_data");
    return existsSync(file) ? [{ path: "model.onnx_data", data: readFileSync(file) }] : [];
  };
  await plain(ort, (path) =>
    ort.InferenceSession.create(readFileSync(path), { executionProviders: ["wasm"], externalData: beside(path) }),
  );
} else {
  await transformers();
}
process.exit(0);
