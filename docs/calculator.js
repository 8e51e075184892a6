// What a rank holds, drawn: the part of docs/calculator.md that computes. docs/site.py puts it at the end of that page.
// The formulas are those of docs/formulas.md and of the planner; tests/site/calculator_test.py compares them with it.
"use strict";

const zeroCalculator = (() => {
  const KINDS = {  // bytes of a parameter, its gradient, its optimizer states
    mixed: {says: "bf16 and float32 masters", parameter: 2, gradient: 2, optimizer: 12},
    fp32: {says: "float32", parameter: 4, gradient: 4, optimizer: 8},
  };
  const STAGES = ["DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3"];
  const GIB = 2 ** 30, SCRATCH = 32 * 2 ** 20, GPUS = [24, 40, 80, 141];
  const SIZES = [6, 7, 8, 9, 10, 11].flatMap(power => [1, 1.3, 2, 3, 5, 7].map(k => Math.round(k * 10 ** power)));
  SIZES.push(10 ** 12);

  const grouped = number => number.toLocaleString("en-US");
  const inGib = bytes => (bytes / GIB).toLocaleString("en-US", {minimumFractionDigits: 2, maximumFractionDigits: 2});

  // The elements of the largest unit: like the planner, equal layers of 12 h^2 elements with h = 128 layers.
  function unitOf(parameters) {
    return Math.ceil(parameters / Math.max(1, Math.round(Math.cbrt(parameters / (12 * 128 * 128)))));
  }

  // What the fullest rank holds, in bytes, with a formula for each part. `host` is in the memory of the host.
  function held({parameters, ranks, group, stage, kind, offload}) {
    const bytes = KINDS[kind], share = Math.ceil(parameters / group), unit = unitOf(parameters);
    const missing = unit - Math.floor(unit / group);  // what the rank does not own of a unit
    const state = (name, from, each) => ({
      name, bytes: each * (stage >= from ? share : parameters),
      formula: each + (stage >= from ? " \u2308P / S\u2309" : " P"),
      values: stage >= from ? `${each} \u00d7 \u2308${grouped(parameters)} / ${group}\u2309`
                            : `${each} \u00d7 ${grouped(parameters)}`,
    });
    const optimizer = state("optimizer", 1, bytes.optimizer);
    const host = offload ? optimizer.bytes : 0;
    if (offload) Object.assign(optimizer, {bytes: 0, formula: "on the host: " + optimizer.formula});
    const each = [0, 0, bytes.gradient, bytes.gradient + bytes.parameter][stage], scratch = "32 MiB";
    const step = {name: "one unit", bytes: 0, formula: "0", values: "one rank sends nothing"};
    if (ranks > 1) {
      step.bytes = SCRATCH + each * missing;
      step.formula = each ? `${each} (u \u2212 \u230au / S\u230b) + ${scratch}` : scratch;
      step.values = each ? `${each} \u00d7 ${grouped(missing)} + ${scratch}` : scratch;
    }
    const parts = [state("parameters", 3, bytes.parameter), state("gradients", 2, bytes.gradient), optimizer, step];
    return {parts, host, total: parts.reduce((sum, part) => sum + part.bytes, 0)};
  }

  // The options with which the planner prints these numbers. A group of all ranks is what it takes by itself.
  function options({parameters, ranks, group, stage, kind}) {
    const inGroups = stage > 0 && group < ranks ? ` --shard-size ${group}` : "";
    return `--parameters ${parameters} --world-size ${ranks} --dtype ${kind}${inGroups}`;
  }

  const FORM = `
    <div class="calc-form">
      ${[["parameters", "Parameters P"], ["ranks", "Ranks N"], ["stage", "Stage"], ["group", "Ranks of a group S"]].map(
        ([name, label]) => `<div><label for="calc-${name}">${label}</label> <output for="calc-${name}"></output>` +
          `<input type="range" id="calc-${name}"></div>`).join("")}
      <div><label for="calc-kind">Precision</label> <output for="calc-kind"></output><select id="calc-kind">
        ${Object.entries(KINDS).map(([kind, {says}]) => `<option value="${kind}">${says}</option>`).join("")}
      </select></div>
      <div class="calc-check"><input type="checkbox" id="calc-offload">
        <label for="calc-offload">optimizer states on the host</label></div>
    </div>
    <p id="calc-verdict" role="status"></p>
    <div id="calc-bars"></div>
    <table class="calc-table" aria-label="The chosen stage"><thead><tr><th scope="col">part</th>
      <th scope="col">formula, with these values</th><th scope="col">GiB</th></tr></thead>
      <tbody id="calc-parts"></tbody></table>
    <p>The planner on this setting, with activations and times:</p>
    <pre class="fragment" id="calc-command" tabindex="0"></pre>`;

  // One bar: a name, its parts in one row, and a number. What is wider than the scale fades out at the right.
  function bar(name, says, parts, scale, isChosen) {
    const row = document.createElement("div");
    row.className = "calc-bar" + (isChosen ? " calc-chosen" : "");
    row.innerHTML = '<span class="calc-name"></span><span class="calc-track" aria-hidden="true"></span><span></span>';
    const [label, track, number] = row.children;
    label.textContent = name;
    number.textContent = says;
    track.classList.toggle("calc-cut", parts.reduce((sum, part) => sum + part.bytes, 0) > scale);
    for (const part of parts) {
      const piece = track.appendChild(document.createElement("span"));
      piece.className = "calc-" + part.name.replace(" ", "-");
      piece.style.width = `${Math.min(100, 100 * part.bytes / scale)}%`;
    }
    return row;
  }

  function draw(root) {
    root.innerHTML = FORM;
    const find = name => root.querySelector("#calc-" + name);
    const fields = Object.fromEntries(["parameters", "ranks", "stage", "group", "kind", "offload"].map(
      name => [name, find(name)]));
    for (const [name, max, value] of [["parameters", SIZES.length - 1, SIZES.indexOf(7e9)], ["ranks", 10, 3],
                                      ["stage", 3, 3]]) {
      Object.assign(fields[name], {max, value});
    }
    fields.group.max = fields.group.value = fields.ranks.value;

    function update() {
      const ranks = 2 ** fields.ranks.value, wasWhole = fields.group.value === fields.group.max;
      fields.group.min = Math.min(1, fields.ranks.value);  // a group of one rank shares nothing
      fields.group.max = fields.ranks.value;
      if (wasWhole) fields.group.value = fields.group.max;
      const setting = {
        parameters: SIZES[fields.parameters.value], ranks, stage: Number(fields.stage.value), kind: fields.kind.value,
        group: 2 ** fields.group.value, offload: fields.offload.checked,
      };
      const says = {
        parameters: grouped(setting.parameters), ranks, stage: STAGES[setting.stage],
        group: setting.group === ranks ? `${ranks}, all` : `${setting.group} of ${ranks}` +
          (setting.stage ? ": HSDP" : ", not used by DDP"),
        kind: `${KINDS[setting.kind].parameter} + ${KINDS[setting.kind].gradient} + ` +
          `${KINDS[setting.kind].optimizer} bytes`,
      };
      for (const [name, text] of Object.entries(says)) {
        fields[name].parentElement.querySelector("output").textContent = text;
        if (name !== "kind") fields[name].setAttribute("aria-valuetext", text);
      }
      const all = STAGES.map((_, stage) => held({...setting, stage})), chosen = all[setting.stage];
      const fits = GPUS.filter(gib => chosen.total <= gib * GIB);
      find("verdict").textContent = `${STAGES[setting.stage]}: ${inGib(chosen.total)} GiB on the fullest rank` +
        (setting.offload ? `, and ${inGib(chosen.host)} GiB on the host for each rank` : "") +
        `. Before activations that fits ${fits.length ? `${fits.join(", ")} GiB` : "none of these GPUs"}.`;
      const scale = 1.05 * Math.max(chosen.total, (fits[0] ?? 0) * GIB);
      const note = (gib, isFit) => `${gib} GiB ${isFit ? "fits" : "too small"}`;
      find("bars").replaceChildren(
        ...all.map((one, stage) => bar(STAGES[stage], `${inGib(one.total)} GiB`, one.parts, scale,
                                       stage === setting.stage)),
        ...GPUS.map(gib => bar("GPU", note(gib, fits.includes(gib)), [{name: "gpu", bytes: gib * GIB}], scale, false)));
      const total = {name: "all", formula: "sum", bytes: chosen.total};
      find("parts").innerHTML = [...chosen.parts, total].map(part =>
        `<tr><th scope="row"><span class="calc-key calc-${part.name.replace(" ", "-")}"></span> ${part.name}</th>` +
        `<td><span>${part.formula}</span>${part.values ? ` <span>= ${part.values}</span>` : ""}</td>` +
        `<td>${inGib(part.bytes)}</td></tr>`).join("");
      find("command").textContent = `./run plan ${options(setting)} --memory 24GiB`;
    }
    root.addEventListener("input", update);
    update();
  }

  return {held, options, draw};
})();

if (typeof document !== "undefined") zeroCalculator.draw(document.querySelector("#calculator"));
