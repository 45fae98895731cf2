"""What a comparison says, in Chinese: see comparison.show.language."""

CATALOGUE = {
    # ---- rows
    "one device": "单设备",
    "one process, all cores": "一个进程，全部核",
    "model parallel": "模型并行",
    "model parallel with micro-batches": "带微批次的模型并行",
    "pipeline ×{#n}": "流水线 ×{n}",
    "pipeline ×{#n} on {#m} nodes": "流水线 ×{n}，{m} 个节点",
    "{-method} ×{#n} on {#m} nodes": "{method} ×{n}，{m} 个节点",
    "nodes {#n}": "节点 {n}",
    "no exchange": "不交换梯度",
    "gradients in {type}": "梯度用 {type}",
    "simulated": "模拟",
    "again": "重复",
    "before": "之前",
    "model {-name}": "模型 {name}",
    "batch size {#n}": "批次大小 {n}",
    "workers {#n}": "加载进程 {n}",
    "micro-batches {#n}": "微批次 {n}",

    # ---- how many
    "{#n} runs": "{n} 次运行",
    "{#n} run": "{n} 次运行",
    "{#n} runs each": "各运行 {n} 次",
    "{#n} run each": "各运行 {n} 次",
    "{#n} epochs": "{n} 轮",
    "{#n} epoch": "{n} 轮",
    "{#n} epochs of {#k} steps": "{n} 轮、每轮 {k} 步",
    "{#n} epoch of {#k} steps": "{n} 轮、每轮 {k} 步",
    "{#n} epochs of {#k} step": "{n} 轮、每轮 {k} 步",
    "{#n} epoch of {#k} step": "{n} 轮、每轮 {k} 步",
    "{#n} devices": "{n} 台设备",
    "{#n} device": "{n} 台设备",
    "{#n} cores": "{n} 个核",
    "{#n} core": "{n} 个核",
    "{#n} threads": "{n} 个线程",
    "{#n} thread": "{n} 个线程",
    "{#n} loader workers": "{n} 个加载进程",
    "{#n} loader worker": "{n} 个加载进程",
    "{#n} blocks": "{n} 个区组",
    "{#n} block": "{n} 个区组",
    "{#n} micro-batches": "{n} 个微批次",
    "{#n} micro-batch": "{n} 个微批次",
    "{#n} simulated rows left out": "略去 {n} 个模拟的行",
    "{#n} simulated row left out": "略去 {n} 个模拟的行",
    "{#n} simulated or refused rows left out": "略去 {n} 个模拟的或被拒绝的行",
    "{#n} simulated or refused row left out": "略去 {n} 个模拟的或被拒绝的行",

    # ---- the title, and what is equal
    "{models} on {data}, {batch}, {epochs}, {runs} each": "{data} 上的 {models}，{batch}，{epochs}，各 {runs}",
    "{data} (first {#n} images)": "{data}（前 {n} 张图像）",
    "global batch {n}": "全局批次 {n}",
    "per-device batch {#n}": "每设备批次 {n}",
    "WEAK SCALING: batch {n} per device": "弱扩展：每设备批次 {n}",
    "each with its LARGEST BATCH": "各用自己的最大批次",
    "Equal in all rows: {settings}.": "各行相同：{settings}。",
    "device {name}": "设备 {name}",
    "steps per epoch {#n}": "每轮 {n} 步",
    "threads per device {#n}": "每设备 {n} 个线程",
    "precision {type}": "精度 {type}",
    "loader {name}": "加载器 {name}",
    "UNEQUAL ({settings})": "不相等（{settings}）",
    "UNEQUAL settings": "设置不相等",
    "{-setting} instead of {-other}": "{setting}，而不是 {other}",

    # ---- what became of a row
    "baseline": "基准",
    "faster": "更快",
    "accuracy {#n} points lower": "准确率低 {n} 个百分点",
    "accuracy not shown to be within {#n} points": "没有表明准确率相差不超过 {n} 个百分点",
    "accuracy not shown to be within {#n} point": "没有表明准确率相差不超过 {n} 个百分点",
    "images {#n}": "图像 {n}",
    "slower": "更慢",
    "practically equal": "实际相等",
    "undecided": "未定",
    "disturbed": "受干扰",
    "no interval: too few runs": "没有区间：运行次数太少",
    "skipped": "跳过",
    "skipped: {why}.": "跳过：{why}。",
    "not run": "没有运行",
    "not run.": "没有运行。",
    "ok": "正常",
    "failed": "失败",
    "timed out": "超时",
    "out of memory": "内存不足",
    "diverged": "发散",
    "invalid": "无效",
    "not reached": "没有达到",
    "fits": "放得下",
    "failed: computes something else": "失败：计算结果不同",
    "failed: not checked": "失败：没有核对",
    "{#n} of {runs} {status}": "{runs}中有 {n} 次{status}",
    "{mean} (not reached by {#n} of {runs})": "{mean}（{runs}中有 {n} 次没有达到）",
    "refused: {settings}": "被拒绝：{settings}",
    "at a batch of {#n}": "批次 {n}",
    "at a batch of {#n}, {#part} per device": "批次 {n}，每设备 {part}",
    "out of memory at a batch of {#n}": "批次 {n} 时内存不足",
    "out of memory at a batch of {#n}, {#part} per device": "批次 {n}（每设备 {part}）时内存不足",
    "no run ended well": "没有一次运行正常结束",
    "the baseline, {name}, is not among the methods": "基准 {name} 不在所选方法之中",
    "the baseline, {name}, has no run that ended well": "基准 {name} 没有一次运行正常结束",
    "the baseline, {name}, is simulated": "基准 {name} 是模拟的",
    "the check of the maths of {name} failed": "{name} 的计算结果没有通过核对",
    "{name} missed the target accuracy in {#n} of {runs}": "{name} 在{runs}中有 {n} 次没有达到目标准确率",

    # ---- tables
    "method": "方法",
    "result": "结果",
    "data set": "数据集",
    "devices": "设备",
    "accuracy (%)": "准确率 (%)",
    "Accuracy\n(%)": "准确率\n(%)",
    "time per epoch (s)": "每轮时间 (s)",
    "time per image (µs)": "每张图像的时间 (µs)",
    "Epoch\n(s)": "每轮\n(s)",
    "Total\n(s)": "总共\n(s)",
    "Training to {#n} % (s)": "训练到 {n} % (s)",
    "Training to\n{#n} % (s)": "训练到\n{n} % (s)",
    "min–max": "最短–最长",
    "runs": "运行次数",
    "images/s": "图像/s",
    "images/J": "图像/J",
    "speed-up": "加速比",
    "Speed-up [95 %]": "加速比 [95 %]",
    "Speed-up\n[95 %]": "加速比\n[95 %]",
    "Speed-up to {#n} % [95 %]": "到 {n} % 的加速比 [95 %]",
    "Efficiency [95 %]": "效率 [95 %]",
    "total time (s)": "总时间 (s)",
    "peak memory (MiB)": "内存峰值 (MiB)",
    "Memory\n(MiB)": "内存\n(MiB)",
    "max |Δ parameter|": "max |Δ 参数|",
    "largest batch": "最大批次",
    "Largest\nbatch": "最大\n批次",
    "model": "模型",
    "batch": "批次",
    "batch size": "批次大小",
    "workers": "加载进程",
    "micro-batches": "微批次",
    "global batch": "全局批次",
    "per-device batch": "每设备批次",
    "steps per epoch": "每轮步数",
    "threads per device": "每设备线程",
    "device": "设备",
    "precision": "精度",
    "loader": "加载器",
    "before (s per epoch)": "之前（每轮 s）",
    "Before (s\nper epoch)": "之前\n（每轮 s）",
    "now (s per epoch)": "现在（每轮 s）",
    "Now (s\nper epoch)": "现在\n（每轮 s）",
    "times as fast [95 %]": "快到几倍 [95 %]",
    "Times as\nfast [95 %]": "快到几倍\n[95 %]",
    "now differs in": "现在的不同之处",
    "not compared: they train other numbers of images": "不比较：训练的图像数不同",
    "step (ms)": "一步 (ms)",
    "even share (ms)": "均摊份额 (ms)",
    "difference [95 %]": "差 [95 %]",
    "start to end (s)": "从开始到结束 (s)",
    "baseline's (s)": "基准的 (s)",
    "data": "数据",
    "transfer": "传输",
    "forward": "前向",
    "backward": "反向",
    "exchange": "交换",
    "update": "更新",
    "rest": "其余",
    "outside": "阶段之外",
    "start-up": "启动",
    "warm-up": "预热",
    "training": "训练",
    "evaluation": "评估",
    "rank": "rank",
    "its own work (ms)": "自己的计算 (ms)",
    "exchange (ms)": "交换 (ms)",
    "cores it kept busy": "占用的核",
    "without a core (%)": "等核 (%)",
    "peak (MiB)": "峰值 (MiB)",
    "all devices (MiB)": "全部设备 (MiB)",
    "parameters": "参数",
    "gradients": "梯度",
    "optimizer state": "优化器状态",
    "the rest": "其余",
    "any kernel runs": "有内核在运行",
    "reserved by PyTorch (MiB)": "PyTorch 保留 (MiB)",
    "in use by all (MiB)": "全部占用 (MiB)",
    "power (W)": "功率 (W)",
    "energy (J per epoch)": "能量（每轮 J）",
    "clock (MHz)": "时钟 (MHz)",
    "held down by heat or power": "受温度或功率限制",
    "another program computes": "其他程序在计算",
    "one device's step (ms)": "单设备一步 (ms)",
    "all-reduce (ms)": "all-reduce (ms)",
    "loader's limit (ms)": "加载的下限 (ms)",
    "cores' limit (ms)": "核的下限 (ms)",
    "Epoch, projected, not measured (s)": "每轮，推算，非实测 (s)",
    "Epoch (s)": "每轮 (s)",
    "Speed-up, projected": "加速比，推算",
    "Epoch, measured (s)": "每轮，实测 (s)",
    "Epoch,\nmeasured (s)": "每轮，\n实测 (s)",
    "Speed-up along trees, projected": "加速比（沿树，推算）",
    "Error of the projection": "推算误差",
    "Error of the\nprojection": "推算\n误差",
    "waiting for data (ms/step)": "等数据 (ms/步)",
    "rest of the step (ms)": "一步的其余 (ms)",
    "{time} ÷ that at {value} [95 %]": "{time} ÷ {value} 时的 [95 %]",
    "class": "类别",
    "block": "区组",
    "epoch": "轮",
    "training (s)": "训练 (s)",
    "training loss": "训练损失",
    "test accuracy (%)": "测试准确率 (%)",
    "does not count": "不计入",
    "setting": "设置",
    "value": "值",
    "what": "项目",
    "found": "结果",
    "No run ended well.": "没有一次运行正常结束。",
    "Not known for any row.": "各行都不知道。",

    # ---- headings
    "now and before": "现在与之前",
    "verdict": "结论",
    "proof by intervention": "用干预来证明",
    "what was guessed": "事先的猜测",
    "where the time goes": "时间花在哪里",
    "every rank": "每个 rank",
    "memory of a device": "一台设备的内存",
    "the GPUs while they trained": "训练期间的 GPU",
    "which batches fit": "哪些批次放得下",
    "what was equal": "哪些相等",
    "sweeps": "扫描",
    "projection ({words})": "推算（{words}）",
    "projected, not measured": "推算，非实测",
    "figures": "图",
    "how the numbers are defined": "数字的定义",
    "what was not measured": "没有测量什么",
    "accuracy per class (%)": "各类别的准确率 (%)",
    "settings": "设置",
    "machine": "机器",
    "every epoch, run by run": "逐次运行的每一轮",
    "commands": "命令",
    "Made by": "生成命令",
    "Speed-up, with what all intervals together hold in 95 % of comparisons":
        "加速比；在 95 % 的比较中，所有区间同时包含真值",
    "Seconds of every timed epoch (warm-up left out), and their mean": "每个计时的轮的秒数（预热除外）及其平均",

    # ---- parts of sentences
    "{#x} times as fast": "速度为 {x} 倍",
    "{#x} times as fast (95 %: {#low} to {#high})": "速度为 {x} 倍（95 %：{low} 至 {high}）",
    "(95 %: {#low} to {#high})": "（95 %：{low} 至 {high}）",
    "{#s} s per epoch": "每轮 {s} 秒",
    "{#s} s": "{s} 秒",
    "{#s} s of training to {#n} %, {#e} s per epoch": "训练到 {n} % 用 {s} 秒，每轮 {e} 秒",
    "{#s} s instead of {#t} s per epoch": "每轮 {s} 秒，而不是 {t} 秒",
    "{#s} instead of {#t} images/s": "每秒 {s} 张图像，而不是 {t} 张",
    "{#n} images/s, {#e} s per epoch": "每秒 {n} 张图像，每轮 {e} 秒",
    "{#s} s of training to {#n} %, {#m} images/s, {#e} s per epoch": "训练到 {n} % 用 {s} 秒，每秒 {m} 张图像，每轮 {e} 秒",
    "{time}, instead of {other}": "{time}，而不是{other}",
    "{#ratio} (faster)": "{ratio}（更快）",
    "{#ratio} (slower)": "{ratio}（更慢）",
    "{#ratio} (practically equal)": "{ratio}（实际相等）",
    "{#ratio} (undecided)": "{ratio}（未定）",
    "kept up to {#n} of {cores} busy": "最多占用{cores}中的 {n} 个",
    "computed on a GPU for {#n} of the time": "在 {n} 的时间里用 GPU 计算",
    "kept up to {#n} of {cores} busy and computed on a GPU for {#m} of the time":
        "最多占用{cores}中的 {n} 个，并在 {m} 的时间里用 GPU 计算",
    "other programs {what} during runs of {rows}, so that nothing can be claimed from their times; close them and run "
    "again": "在{rows}运行期间，其他程序{what}，所以不能从其时间作出任何结论；请关闭它们，重新运行",

    # ---- what to use
    "Recommendation": "建议",
    "For {trained}: Recommendation: {words}": "{trained}：建议：{words}",
    "none, as no other method was measured against the baseline.": "无，因为没有别的方法与基准比较过。",
    "none.": "无。",
    "The comparison was disturbed.": "这次比较受到了干扰。",
    "One process with all {#n} cores may be faster than all of these and was not measured: add {methods} to --methods, "
    "or see above why it has no time.":
        "用全部 {n} 个核的一个进程可能比这些都快，却没有测量：请把 {methods} 加到 --methods，或见上文它为何没有时间。",
    "Each row trains with a batch of its own, so that an epoch teaches each something else: images per second do not "
    "say which one learns sooner; with --target-accuracy they are compared in that.":
        "每行用自己的批次训练，同样的一轮学到的东西不同：每秒图像数并不说明哪一行学得更快；用 --target-accuracy 可以比较这一点。",
    "none, as so few runs prove nothing; the fastest was {row}, {#x} times as fast{i?} as {base}.":
        "无，因为这么少的运行什么也证明不了；最快的是{row}，速度为{base}的 {x} 倍{i}。",
    "Give --repeats 3 or more.": "请给出 --repeats 3 或更多。",
    "stay with {row}, {time}.": "继续用{row}，{time}。",
    "The best of the others against an equal baseline, {row}, is {#x} times as fast{i?} as {base}: {words}.":
        "其余之中与相等的基准相比最好的是{row}，速度为{base}的 {x} 倍{i}：{words}。",
    "use {row} on this machine: {#x} times as fast{i?} as {base}; {time}.":
        "在本机上用{row}：速度为{base}的 {x} 倍{i}；{time}。",
    "use {row} on this machine: {#x} times as fast{i?} as {base} and {#y} times as fast{j?} as {other}; {time}.":
        "在本机上用{row}：速度为{base}的 {x} 倍{i}，为{other}的 {y} 倍{j}；{time}。",
    "Statistically tied with it: {rows}.": "在统计上与它不分高下的：{rows}。",
    "{words}, but {doubts}": "{words}，但{doubts}",
    "{-doubt} and {-other}": "{doubt}和{other}",
    "More --repeats, or --check-maths, can show that.": "更多 --repeats 或 --check-maths 可以表明这一点。",
    "none, as the rows are unequal: {rows}.": "没有，因为各行不相等：{rows}。",
    "{row} is {#x} times as fast{i?} as {base}, with {settings}": "{row}的速度为{base}的 {x} 倍{i}，而{settings}",
    "Not measured here: {rows}.": "在这里没有测量：{rows}。",

    # ---- verdict
    "the baseline, {time} ({#low} to {#high} in {runs}).": "基准，{time}（{runs}，{low} 至 {high}）。",
    "{time} ({#low} to {#high} in {runs}); no speed-up, {why}.": "{time}（{runs}，{low} 至 {high}）；没有加速比，{why}。",
    "{#x} times as fast{i?}; {time}.": "速度为 {x} 倍{i}；{time}。",
    "{#x} times as fast{i?} as {base}; {time}.": "速度为{base}的 {x} 倍{i}；{time}。",
    "slower, {#x} times as fast{i?}; {time}.": "更慢，速度为 {x} 倍{i}；{time}。",
    "slower, {#x} times as fast{i?} as {base}; {time}.": "更慢，速度为{base}的 {x} 倍{i}；{time}。",
    "practically as fast, {#x} times as fast{i?}; {time}.": "实际上一样快，速度为 {x} 倍{i}；{time}。",
    "practically as fast, {#x} times as fast{i?} as {base}; {time}.": "实际上一样快，速度为{base}的 {x} 倍{i}；{time}。",
    "{#x} times as fast{i?}, so that it may be faster or slower; {time}.":
        "速度为 {x} 倍{i}，因此可能更快，也可能更慢；{time}。",
    "{#x} times as fast{i?} as {base}, so that it may be faster or slower; {time}.":
        "速度为{base}的 {x} 倍{i}，因此可能更快，也可能更慢；{time}。",
    "{#x} times as fast, which so few runs do not prove; {time}.": "速度为 {x} 倍，但这么少的运行证明不了；{time}。",
    "{#x} times as fast as {base}, which so few runs do not prove; {time}.":
        "速度为{base}的 {x} 倍，但这么少的运行证明不了；{time}。",
    "It gives {#n} % of {units}.": "它发挥了 {units}的 {n} %。",
    "It gives {#n} % of {units} ({#low} to {#high} %).": "它发挥了 {units}的 {n} %（{low} 至 {high} %）。",
    "Simulated on one device, which says nothing about the method's speed: {rows}.":
        "在一台设备上模拟，与方法的速度无关：{rows}。",
    "Nothing was proved: the comparison was disturbed.": "什么也没有证明：这次比较受到了干扰。",
    "Nothing was proved: no row has a cause that can be taken away.": "什么也没有证明：没有哪一行有可以去掉的原因。",
    "A step takes {#s} ms, {#total} ms more than an even share of {whose} ({#e} ms): {parts}.":
        "一步用 {s} 毫秒，比{whose}均摊的份额（{e} 毫秒）多 {total} 毫秒：{parts}。",
    "A step takes {#s} ms, {#total} ms less than an even share of {whose} ({#e} ms): {parts}.":
        "一步用 {s} 毫秒，比{whose}均摊的份额（{e} 毫秒）少 {total} 毫秒：{parts}。",
    "the baseline's": "基准",
    "where, is not proved": "在哪里，没有得到证明",
    "In no speed-up: {parts}.": "不计入加速比：{parts}。",
    "{#x} ms more {-place}": "{place}多 {x} 毫秒",
    "{#x} ms less {-place}": "{place}少 {x} 毫秒",
    "{#x} ms more {-place} ({advice})": "{place}多 {x} 毫秒（{advice}）",
    "in waiting for data": "等数据",
    "in the transfer to the device": "传到设备上",
    "in the forward pass": "前向",
    "in the backward pass": "反向",
    "in the exchange of gradients": "交换梯度",
    "in the update": "更新",
    "in none of the phases": "各阶段之外",
    "in waiting for the other stages and sending to them": "等待其他级并向它们发送",
    "in the backward pass and in what the devices exchange during it": "反向（包括设备在其中的交换）",
    "{-what} takes {#x} s more": "{what}多用 {x} 秒",
    "{-what} takes {#x} s less": "{what}少用 {x} 秒",
    "an epoch saves {#s} s, so it pays from {#n} epochs on, of {#m} here": "每轮省 {s} 秒，所以从 {n} 轮起划算，这里是 {m} 轮",
    "the first epoch's warm-up": "第一轮的预热",
    "{what}'s wrapper: an epoch with one rank, divided by one without {name}, is {ratio}.":
        "{what} 的包装：一个 rank 的一轮除以没有 {name} 的一轮，是 {ratio}。",
    "Contention: an epoch with {#n} ranks that exchange nothing, divided by one with one rank, is {ratio}, where {#x} "
    "would be ideal; ranks share cores, memory and loader, and have smaller batches.":
        "争用：{n} 个不交换梯度的 rank 的一轮除以一个 rank 的一轮，是 {ratio}，理想值是 {x}；各 rank 共用核、内存和加载器，批次也更小。",
    "Communication: an epoch with the exchange of gradients, divided by one without, is {ratio}.":
        "通信：交换梯度的一轮除以不交换的一轮，是 {ratio}。",
    "At its peak a device needs {#x} MiB of memory, {#p} more than the {#y} MiB of {base}.":
        "峰值时一台设备需要 {x} MiB 内存，比{base}的 {y} MiB 多 {p}。",
    "At its peak a device needs {#x} MiB of memory, {#p} less than the {#y} MiB of {base}.":
        "峰值时一台设备需要 {x} MiB 内存，比{base}的 {y} MiB 少 {p}。",
    "At its peak a device needs {#x} MiB of memory, {#p} more than the {#y} MiB of {base}: {parts}.":
        "峰值时一台设备需要 {x} MiB 内存，比{base}的 {y} MiB 多 {p}：{parts}。",
    "At its peak a device needs {#x} MiB of memory, {#p} less than the {#y} MiB of {base}: {parts}.":
        "峰值时一台设备需要 {x} MiB 内存，比{base}的 {y} MiB 少 {p}：{parts}。",
    "parameters {#x}": "参数 {x}",
    "gradients {#x}": "梯度 {x}",
    "optimizer state {#x}": "优化器状态 {x}",
    "the rest {#x} MiB": "其余 {x} MiB",
    "Sweep of {what}, {method}: {fastest}.": "{what}的扫描，{method}：{fastest}。",
    "fastest at {value}, {#n} images/s": "{value} 时最快，每秒 {n} 张图像",
    "fastest at {value}, {#s} s of training to {#n} %": "{value} 时最快，训练到 {n} % 用 {s} 秒",
    "fastest at {values} or {value} (not decided)": "{values} 或 {value} 时最快（没有定论）",
    "disturbed, nothing can be claimed from its times": "受到干扰，从其用时得不出任何结论",
    "{time} as a multiple of that at {value}: {ratios}.": "{time}为 {value} 时的几倍：{ratios}。",
    "Largest batch that fits: {rows}.": "放得下的最大批次：{rows}。",
    "It is proved to be faster than its baseline at each of them.": "在每一个值上都证明比基准快。",
    "It is proved to be faster than its baseline at none of them.": "在哪一个值上都没有证明比基准快。",
    "It is proved to be faster than its baseline from {value} on.": "从 {value} 起证明比基准快。",
    "It is proved to be faster than its baseline at {values} alone.": "只在 {values} 上证明比基准快。",
    "It could not be tried {batch}.": "{batch} 都没能试成。",
    "It trains {batch}, which {fits}; {why}.": "它的训练{batch}，{fits}；{why}。",
    "with {#n}: {what}": "{n} 时：{what}",
    "there are fewer than {#n} images": "图像不到 {n} 张",
    "fits, with {#n} MiB at its peak": "放得下，峰值 {n} MiB",
    "{row}, block {#n}, epoch {#m}: {#x} s": "{row}，区组 {n}，第 {m} 轮：{x} s",
    "{row} was guessed to be {#x} times as fast as the baseline: measured {ratio}, in which the guess lies.":
        "猜测{row}的速度是基准的 {x} 倍：测得 {ratio}，猜测在其中。",
    "{row} was guessed to be {#x} times as fast as the baseline: measured {ratio}, and so it is not.":
        "猜测{row}的速度是基准的 {x} 倍：测得 {ratio}，所以并非如此。",
    "{row} was guessed to be {#x} times as fast as the baseline: measured {ratio}, which proves nothing.":
        "猜测{row}的速度是基准的 {x} 倍：测得 {ratio}，这什么也证明不了。",
    "{row} was guessed to be {#x} times as fast as the baseline: it has no speed-up.":
        "猜测{row}的速度是基准的 {x} 倍：它没有加速比。",
    "This machine, this hour: the times of runs have a standard deviation of {#x} %, without what rows and blocks have "
    "in common; differences {shares} are found, in four of five cases.":
        "这台机器，这个时候：去掉各行、各区组共有的部分后，运行时间的标准差是 {x} %；{shares}的差别，五次中能发现四次。",
    "above about {#x} % in {blocks}": "{blocks}内约 {x} % 以上",
    "above about {#x} % in {blocks} and above about {#y} % in {more}": "{blocks}内约 {x} % 以上、{more}内约 {y} % 以上",
    "Two equal rows, {row} and the same again: {words}.": "两个相等的行，{row}与它的重复：{words}。",
    "{#ratio} times as fast, not told apart": "速度为 {ratio} 倍，分不出高下",
    "{#ratio} times as fast, TOLD APART, though equal": "速度为 {ratio} 倍，虽然相等却被区分开了",
    "{#ratio} times as fast, disturbed": "速度为 {ratio} 倍，受干扰",
    "{row}, without {cause} ({change}): not measured undisturbed.": "{row}，去掉{cause}（{change}）：没有不受干扰的测量。",
    "{row}, without {cause} ({change}): a step is {#x} ms shorter, predicted were {#y} ms: {words}.":
        "{row}，去掉{cause}（{change}）：一步短 {x} 毫秒，预计 {y} 毫秒：{words}。",
    "{row}, without {cause} ({change}): a step is {#x} ms longer, predicted were {#y} ms: {words}.":
        "{row}，去掉{cause}（{change}）：一步长 {x} 毫秒，预计短 {y} 毫秒：{words}。",
    "one block proves nothing": "一个区组什么也证明不了",
    "not proved": "没有得到证明",
    "proved": "得到证明",
    "proved, and less than predicted": "得到证明，比预计的少",
    "proved, and more than predicted": "得到证明，比预计的多",
    "waiting for data": "等数据",
    "too many workers": "加载进程太多",
    "loader resident": "加载器 resident",
    "batch {#n}": "批次 {n}",

    # ---- causes
    "It is no fair comparison: {settings}.": "这不是公平的比较：{settings}。",
    "The interval includes 1: with runs that differ by up to {#n} among themselves, the difference may be chance; more "
    "--repeats would narrow it.": "区间包含 1：各次运行之间相差最多 {n}，所以差别可能是偶然；更多的 --repeats 会使区间变窄。",
    "Waiting for data takes {#x} of {#y} ms per step ({#n}): {advice}.": "每步 {y} 毫秒中有 {x} 毫秒（{n}）在等数据：{advice}。",
    "batches are cut out of memory, so that the network is small beside its data":
        "批次是从内存里裁出来的，所以网络相对于数据太小",
    "with {#n} workers instead of {#m} an epoch was measured at {#s} s": "用 {n} 个而不是 {m} 个加载进程时，测得每轮 {s} 秒",
    "{cores} of {#n} is left for more --num-workers": "{n} 个核中还剩{cores}，可以给更多的 --num-workers",
    "{cores} of {#n} are left for more --num-workers": "{n} 个核中还剩{cores}，可以给更多的 --num-workers",
    "{threads} and {workers} have the {cores} already, so that more workers would take from the computation":
        "{threads}和{workers}已经占满{cores}，再加加载进程就会占用计算",
    "Rank {#n} has {#x} ms more to do in a step than the others, which wait for it, most of it {place}: {advice}.":
        "rank {n} 每步比其他的多做 {x} 毫秒，其他的都在等它，主要是{place}：{advice}。",
    "look for what its core or device has to do besides": "看看它的核或设备还在做什么",
    "another --split-at may give the stages more equal parts": "换一个 --split-at 也许能把各级分得更均匀",
    "For {#n} ± {#m} of the time its threads were ready to compute and had no core: {threads} and {workers} share "
    "{cores}; fewer --num-workers leave more to the threads.":
        "在 {n} ± {m} 的时间里，它的线程可以计算却没有核：{threads}和{workers}共用{cores}；减少 --num-workers 可以给线程多留一些。",
    "For {#n} ± {#m} of the time its threads were ready to compute and had no core: {threads} share {cores}; give it "
    "more cores, or fewer processes or threads.":
        "在 {n} ± {m} 的时间里，它的线程可以计算却没有核：{threads}共用{cores}；请给它更多的核，或更少的进程或线程。",
    "For {#n} ± {#m} of the time its threads were ready to compute and had no core, of {#c}: {advice}.":
        "在 {n} ± {m} 的时间里，它的线程可以计算，{c} 个核中却没有空闲的：{advice}。",
    "look for other programs; what sends for a rank has no cores but the rank's own":
        "请找找其他程序；替 rank 收发数据的线程也只有这个 rank 自己的核",
    "look for other programs, or type --bind, which gives every rank cores of its own":
        "请找找其他程序，或者加上 --bind，让每个 rank 独占自己的核",
    "look for other programs, and for what binds processes to the same cores":
        "请找找其他程序，以及是什么把进程绑在同样的核上",
    "While it computes, it keeps at most {#x} cores busy with its {#n} threads: its operations are too small to share, "
    "or something limits them (a quota, a library that sets their number).":
        "计算时，它的 {n} 个线程最多占用 {x} 个核：运算太小，分不动，或者受到了限制（配额，或设定线程数的库）。",
    "Its epochs get longer while it trains, by {#n} ± {#m} from the first that counts to the last: a longer training "
    "would not go on at this speed.": "训练越久每轮越长，从第一个计入的轮到最后一轮长了 {n} ± {m}：更长的训练不会保持这个速度。",
    "Its epochs get longer while it trains, by {#n} ± {#m} more than the baseline's from the first that counts to the "
    "last: a longer training would not go on at this speed.":
        "训练越久每轮越长，从第一个计入的轮到最后一轮比基准多长了 {n} ± {m}：更长的训练不会保持这个速度。",
    "--loader resident would save {#x} of {#y} ms per step ({#n}): it was measured to cut {#r} images/s out of memory "
    "here, {#z} ms for a step's.":
        "--loader resident 会在每步 {y} 毫秒中省下 {x} 毫秒（{n}）：在这里测得它每秒从内存裁出 {r} 张图像，一步的用 {z} 毫秒。",
    "Carried out on one device, {-name}'s own work takes {#x} of {#y} ms per step ({#n}; {parts}): one process feeds all "
    "devices, and the first one collects.":
        "在一台设备上执行时，{name} 自己的工作在每步 {y} 毫秒中占 {x} 毫秒（{n}；{parts}）：一个进程喂所有设备，第一台设备收集。",
    "{-name}'s own work takes {#x} of {#y} ms per step ({#n}; {parts}): one process feeds all devices, and the first one "
    "collects.": "{name} 自己的工作在每步 {y} 毫秒中占 {x} 毫秒（{n}；{parts}）：一个进程喂所有设备，第一台设备收集。",
    "In the forward pass each of the two devices idles {#n} of the time (computed, not measured, for two devices from "
    "{#x} and {#y} ms per batch in the two stages), ideally {#i}, (P-1)/(M+P-1) with P = 2 stages and M = {m}.":
        "前向时两台设备各有 {n} 的时间空闲（计算得出，非实测，按两级每批 {x} 和 {y} 毫秒推到两台设备），理想值 {i}，即 "
        "(P-1)/(M+P-1)，P = 2 级，M = {m}。",
    "In the forward pass each of the two devices idles {#n} of the time (measured, with {#x} and {#y} ms per batch in "
    "the two stages), ideally {#i}, (P-1)/(M+P-1) with P = 2 stages and M = {m}.":
        "前向时两台设备各有 {n} 的时间空闲（实测，两级每批 {x} 和 {y} 毫秒），理想值 {i}，即 (P-1)/(M+P-1)，P = 2 级，M = {m}。",
    "From the first forward pass of a batch to its last backward pass, the stages wait and send for {#n} of the time, "
    "ideally {#i}, (P-1)/(M+P-1) with P = {#p} stages and M = {m}.":
        "从一批的第一次前向到最后一次反向，各级有 {n} 的时间在等待和发送，理想值 {i}，即 (P-1)/(M+P-1)，P = {p} 级，M = {m}。",

    # ---- warnings and notes
    "WARNING": "警告",
    "its runs have a standard deviation of {#n} ({#low} to {#high} s per epoch): something else used the machine, or it "
    "changed its speed; close other programs, or give more --repeats or a longer --budget.":
        "各次运行的标准差为 {n}（每轮 {low} 至 {high} 秒）：有别的东西在用这台机器，或者它变了速度；请关闭其他程序，"
        "或给出更多的 --repeats 或更长的 --budget。",
    "in block {#n}, epoch {-numbers} took {#s} s, where the median epoch took {#m} s; what counts is the mean.":
        "区组 {n} 中，第 {numbers} 轮用了 {s} 秒，而各轮的中位数是 {m} 秒；计入的是平均值。",
    "in block {#n}, epochs {numbers} took {times} s, where the median epoch took {#m} s; what counts is the mean.":
        "区组 {n} 中，第 {numbers} 轮用了 {times} 秒，而各轮的中位数是 {m} 秒；计入的是平均值。",
    "its first epoch takes {#x} times as long as the others: warm-up, which is left out of the times; give more "
    "--epochs, so that more of them count.": "第一轮用时是其他轮的 {x} 倍：这是预热，不计入时间；请给出更多的 --epochs，让计入的轮更多。",
    "heat or a limit of the power held a GPU's clocks down for {#n} of the time, so that its times say as much about "
    "that; nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER says which.":
        "有 {n} 的时间，温度或功率的限制压低了 GPU 的时钟，所以它的时间同样反映了这一点；"
        "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER 会说明是哪一个。",
    "two equal rows were told apart, {row} and the same again: {ratio}.": "两个相等的行被区分开了，{row}与它的重复：{ratio}。",
    "Chance does that in one of 20 comparisons; else something favours one of two equal processes here: believe no "
    "difference that is not much larger.":
        "20 次比较中有一次会偶然如此；否则，这里有什么在偏向两个相等进程中的一个：不明显更大的差别都不要相信。",
    "INCOMPLETE: interrupted after {#n} of {runs}.": "不完整：在{runs}中的第 {n} 次之后中断。",
    "Block {#n} of {#all} does not count: other programs {what}.": "{all} 个区组中，区组 {n} 不计入：其他程序{what}。",
    "Blocks {n} of {#all} do not count: other programs {what}.": "{all} 个区组中，区组 {n} 不计入：其他程序{what}。",
    "No speed-up for {rows}: {why}.": "{rows}没有加速比：{why}。",
    "no interval: 1 run each.": "没有区间：各运行 1 次。",
    "A difference between single runs may be chance.": "单次运行之间的差别可能是偶然。",
    "it has {threads}, where a device of the other rows has {#n}: it is what one would use without training in "
    "parallel, and the only row that is exempt from the rule of equal threads.":
        "它有 {threads}，而其他行的一台设备有 {n} 个：不做并行训练的人本来就会这样用，只有这一行不受“线程数相等”的限制。",
    "Simulated rows stand in for devices that are not there: they show that the method computes the same, not how fast "
    "it would be, and have no speed-up.": "模拟的行代替了这里没有的设备：它们说明方法的计算结果相同，不说明会有多快，因此没有加速比。",
    "{data} is synthetic: its accuracies say nothing about real images.": "{data} 是合成的：它的准确率与真实图像无关。",
    "it exchanges no gradients, so that its weights differ on purpose.": "它不交换梯度，所以权重本来就不同。",

    # ---- what a script says of itself
    "{#n} replicas take turns on one device": "{n} 个副本在一台设备上轮流",
    "forward and backward contain what the ranks exchange in them": "前向和反向包含 rank 在其中的交换",
    "gradients are not exchanged, every rank trains a model of its own": "不交换梯度，每个 rank 训练自己的模型",
    "both stages on one device, second stage from {-block}, {-parts}": "两级在同一台设备上，第二级从 {block} 起，{parts}",
    "one stage per device, second stage from {-block}, {-parts}": "每台设备一级，第二级从 {block} 起，{parts}",
    "{#n} stages": "{n} 级",
    "from {-block}": "从 {block} 起",
    "resumed {place}, whose times and those before are of the earlier run": "从 {place} 接着训练，这一轮及之前的时间是上次运行的",
    "resumed {place}, whose times are sums of both runs' parts":
        "从 {place} 接着训练，这一轮的时间是两次运行的部分之和",
    "those before are of the earlier run": "之前的是上次运行的",
    "in epoch {#n} the training loss was {-x}, the test loss {-y}": "第 {n} 轮的训练损失是 {x}，测试损失是 {y}",
    "the best test accuracy of {-epochs} was {#x}": "{epochs}中最好的测试准确率是 {x}",

    # ---- definitions
    "Even share: the baseline's time for the same images, phase by phase, ÷ how many times as many devices (on a CPU, "
    "threads) the row has.": "均摊份额：基准处理同样图像的时间，逐个阶段，÷ 该行的设备（在 CPU 上是线程）是基准的几倍。",
    "All parts of a difference add up to it; “outside” is what no phase contains.":
        "差的各部分加起来就是差；“阶段之外”是任何阶段都不包含的时间。",
    "Means over the blocks in which both were measured, ± half of Student's interval on the blocks' differences: of the "
    "difference with 95 % confidence, of the parts so much wider that all of them hold together with 95 % (Bonferroni).":
        "两者都测量过的区组的平均，± 区组之差的 Student 区间的一半：差的置信度为 95 %；各部分的区间更宽，使它们同时成立的置信度为 95 %"
        "（Bonferroni）。",
    "A part is proved where it is larger than what follows the ±.": "一个部分大于 ± 之后的数，就得到证明。",
    "The phases are those of the rank with the most to do, for which the others wait.":
        "各阶段取要做的最多、其他都在等它的那个 rank。",
    "Exchange: from its own last gradient until the mean over all ranks is there.":
        "交换：从它自己的最后一个梯度，到所有 rank 的平均到齐。",
    "A run's training is the speed-up; the rest is in no speed-up.": "一次运行中的训练就是加速比所说的；其余不计入加速比。",
    "Afterwards every row with such a cause ran again, in blocks of their own, beside the same row with the cause taken "
    "away.": "之后，每个有这种原因的行在单独的区组里再运行一次，旁边是去掉该原因的同一行。",
    "Milliseconds per step, for as many images; means over the blocks with 95 % intervals.":
        "每步毫秒，图像数相同；区组的平均及 95 % 区间。",
    "Every row beside the same one before, in the same blocks.": "每行与之前的同一行并列，在同样的区组里。",
    "All intervals of the table together hold the truth in 19 of 20 comparisons (Bonferroni).":
        "20 次比较中有 19 次，表中所有区间同时包含真值（Bonferroni）。",
    "Means per step.": "每步的平均。",
    "Cores it kept busy: its CPU time, of all threads, ÷ wall time.": "占用的核：所有线程的 CPU 时间 ÷ 实际时间。",
    "Without a core: ready to run, and waiting in the kernel's queue, ÷ wall time; with several threads, the sum over "
    "them.": "等核：可以运行、在内核队列里等待的时间 ÷ 实际时间；有多个线程时，是它们之和。",
    "Loader workers are in neither.": "两者都不含加载进程。",
    "As NVML gave it, five times a second in the timed epochs; means over the runs.":
        "由 NVML 给出，在计时的轮里每秒五次；各次运行的平均。",
    "Energy: the GPU alone, by its counter.": "能量：只是 GPU，按它的计数器。",
    "An all-reduce of the {#bytes} bytes of gradients of {-model} between all {#n} GPUs has a bus bandwidth of {#speed} "
    "Gbit/s, as NCCL's tests define it, between ranks that train.":
        "全部 {n} 个 GPU 之间对 {model} 的 {bytes} 字节梯度做全归约，总线带宽为 {speed} Gbit/s（按 NCCL 测试的定义），在训练中的各进程之间测得。",
    "In use by all: at most, with every program's context.": "全部占用：最大值，含每个程序的上下文。",
    "Time per epoch: training only, from asking for the first batch until all devices are idle, of the slowest rank; a "
    "run's mean over its epochs ({warm}), then the geometric mean over the runs, as for all times.":
        "每轮时间：只含训练，从请求第一批到所有设备空闲，取最慢的 rank；一次运行取各轮的平均（{warm}），再取各次运行的几何平均，"
        "所有时间都是如此。",
    "Where runs failed, it is adjusted to all blocks, so that the quotient of two rows' times is their speed-up.":
        "有运行失败时，按全部区组校正，使两行用时之商就是加速比。",
    "the first epoch warms up and is left out": "第一轮是预热，不计入",
    "there is only one, with its warm-up": "只有一轮，含预热",
    "Evaluation is not in it.": "不含评估。",
    "Speed-up: the {what} of the {row} row with the same swept values, divided by the row's.":
        "加速比：扫描值相同的 {row} 行的{what}，除以该行的。",
    "time per image": "每张图像的时间",
    "training time to {#n} %": "训练到 {n} % 的时间",
    "The interval is of logarithms, by randomised blocks: what all rows of a block have in common is no noise, and the "
    "noise is that of the pair's own differences and, for a part, of the other rows.":
        "区间按对数、用随机区组计算：一个区组各行共有的部分不是噪声；噪声来自这一对自己的差，部分来自其他行。",
    "All speed-ups of the table together are within their intervals in 19 of 20 comparisons (Dunnett); so are the "
    "ratios of each sweep.": "20 次比较中有 19 次，表中所有加速比同时在各自的区间内（Dunnett）；每个扫描的比值也是如此。",
    "An interval within ±{#n} % is practically equal; else one that includes 1 is undecided.":
        "在 ±{n} % 之内的区间是实际相等；否则，包含 1 的区间是未定。",
    "In turns: all rows of a block are started, one after the other; then each trains and evaluates one epoch when it "
    "is its turn, in an order shuffled for every epoch, while the others wait without using a core.":
        "轮流：一个区组的各行依次启动；然后轮到谁，谁就训练并评估一轮，每轮的顺序都打乱，其他行等待时不占用核。",
    "What slows the machine down for a while then slows all rows alike.": "机器变慢一阵时，各行同样变慢。",
    "Whole runs: each row of a block runs from start to end, one after the other, in an order shuffled for every block.":
        "完整运行：一个区组的各行从头到尾依次运行，每个区组的顺序都打乱。",
    "Accuracy: after the last epoch, mean over the runs ± their standard deviation.":
        "准确率：最后一轮之后，各次运行的平均 ± 标准差。",
    "Every block of runs has a seed of its own, which its rows share.": "每个区组有自己的种子，区组内各行相同。",
    "Efficiency: speed-up ÷ devices (on a CPU, threads), relative to the baseline's.":
        "效率：加速比 ÷ 设备数（在 CPU 上是线程数），相对于基准的。",
    "Total time: from starting the command to its end, with imports, start-up and evaluation, without the waiting for "
    "its turns.": "总时间：从启动命令到结束，含导入、启动和评估，不含等待轮到自己的时间。",
    "Peak memory: of the device that needs most; the median over the runs.": "内存峰值：取需要最多的设备；各次运行的中位数。",
    "Of all devices: the sum of their peaks, in which what processes share, such as libraries, counts for each.":
        "全部设备：各设备峰值之和，其中进程共用的部分（如库）对每个进程都计入。",
    "What PyTorch allocated while training.": "训练期间 PyTorch 分配的内存。",
    "On a CPU, all that the device's process had in memory, with the interpreter, the libraries and the data, and "
    "without its loader workers.": "在 CPU 上，是该设备的进程的全部内存，含解释器、库和数据，不含它的加载进程。",
    "Disturbed: other programs kept more than {#n} of the cores, or of a GPU's time, busy during a run of the row or of "
    "its baseline; no interval covers that, so nothing is claimed from it.":
        "受干扰：在该行或其基准运行期间，其他程序占用了超过 {n} 的核或 GPU 时间；没有哪个区间能包括它，所以不作任何结论。",
    "Batch sizes are totals over all devices; workers are totals.": "批次大小是所有设备的总数；加载进程也是总数。",
    "Batch sizes are per device: weak scaling; workers are totals.": "批次大小按每台设备计：弱扩展；加载进程是总数。",
    "On a CPU, a device is a fixed number of threads, the same in every row but {rows}.":
        "在 CPU 上，一台设备是固定数量的线程，除{rows}外各行相同。",
    "Accuracies need not coincide between methods: the order of additions differs, which Adam turns into steps, and "
    "BatchNorm, where the model has it, keeps statistics per device (and per micro-batch).":
        "各方法的准确率不必相同：加法的顺序不同，Adam 会把它变成不同的步；模型中的 BatchNorm 按每台设备（和每个微批次）统计。",
    "Largest batch: --batch-size times a power of two, the largest with which a row trained {#n} steps and evaluated, "
    "before the first block, with {#p} of any --memory-limit to spare.":
        "最大批次：--batch-size 乘以二的幂，是该行在第一个区组之前能训练 {n} 步并评估的最大值，且留出 --memory-limit（如有）的 {p}。",
    "If a run needs more, all rows begin again, and that one has half the batch.": "若某次运行需要更多，所有行重新开始，该行批次减半。",
    "An epoch has the same images in every row; its batches, and so its steps and what is learned in it, are each row's "
    "own: speed-ups compare times, accuracies are those of different trainings.":
        "每行一轮的图像相同；批次不同，所以步数和学到的东西各行不同：加速比比较的是时间，准确率来自不同的训练。",
    "Phases are measured by the GPU.": "各阶段由 GPU 计时。",
    "Where its kernels are shorter than the host takes to launch them, as in small networks, forward, backward, and a "
    "method's own times of stages, scatter, replicate and gather are those of the launches.":
        "若内核比主机启动它们所需的时间还短（例如小网络），前向、反向，以及各级、scatter、replicate 和 gather 的时间就是启动的时间。",
    "Looks at the data, to end the comparison once every row is decided: {#n}.": "为了在各行都有定论时结束比较，看过数据的次数：{n}。",
    "So that all looks together make a false claim in no more than 5 % of comparisons, the last intervals have {#p} "
    "(O'Brien and Fleming).": "为了使所有这些查看加起来只在不超过 5 % 的比较中作出错误结论，最后的区间取 {p}（O'Brien 与 Fleming）。",
    "max |Δ parameter|: the largest difference of any weight from one device's, after 20 steps of SGD from the same "
    "weights on the same batches, without augmentation and in evaluation mode (no dropout, BatchNorm by its stored "
    "statistics).":
        "max |Δ 参数|：从同样的权重、用同样的批次做 20 步 SGD 之后，任何权重与单设备的最大差；不做数据增强，用评估模式"
        "（没有 dropout，BatchNorm 用存下的统计量）。",

    # ---- what was not measured
    "The speed of {row}: it was simulated on one device.": "{row} 的速度：它是在一台设备上模拟的。",
    "What the exchange of gradients costs {name}: --methods ladder tells it.": "{name} 交换梯度的代价：--methods ladder 会说明。",
    "it ran out of memory {batch}; a smaller one may fit.": "它{batch}时内存不足；小一些也许放得下。",
    "Anything on this machine's GPUs: the comparison was run with --device cpu.": "本机 GPU 上的任何情况：这次比较用了 --device cpu。",
    "Anything on a GPU: this machine has none that PyTorch sees.": "GPU 上的任何情况：本机没有 PyTorch 能看到的 GPU。",
    "Whether other programs disturbed the runs: this process may use a part of the machine's cores, and cannot tell who "
    "uses those.": "其他程序是否干扰了运行：这个进程只能用机器的一部分核，看不出谁在用它们。",
    "Whether every method computes the same: --check-maths tells it.": "各方法的计算结果是否相同：--check-maths 会说明。",
    "Other machines, and other programs at work on this one.": "其他机器，以及本机上有其他程序工作时的情况。",
    "After 20 steps no weight differs from one device's by more than {x}.": "20 步之后，没有任何权重与单设备相差超过 {x}。",

    # ---- projection
    "Not computed: other programs disturbed the comparison.": "未计算：其他程序干扰了比较。",
    "Not computed: a step on one device did not fit into memory, or nothing was measured.":
        "没有计算：单设备的一步内存放不下，或者什么也没有测量。",
    "projected, not measured: {model}, global batch {#n}; {name} with the batch divided by the number of devices.":
        "推算，非实测：{model}，全局批次 {n}；{name}，批次除以设备数。",
    "A step takes what one device alone was measured to need for its part of the batch, then the all-reduce; every "
    "further device is as fast.": "一步的时间是测得的单设备处理它那份批次的时间，再加 all-reduce；每台新增的设备同样快。",
    "{workers} can deliver at most {#r} images/s, measured with no training beside them: with as many workers, a step "
    "takes no less on any number of devices.":
        "{workers}每秒最多提供 {r} 张图像（在没有训练时测得）：加载进程不变时，无论多少设备，一步都不会更短。",
    "Without workers, each process loads its own part before every step, at the measured {#r} images/s.":
        "没有加载进程时，每个进程在每步之前自己加载，按测得的每秒 {r} 张图像。",
    "The devices take nothing from one another (power, the cores that feed them).": "设备之间互不争抢（功率、喂数据的核）。",
    "All processes share {cores}: before the all-reduce, a step takes what they compute, divided by that, or more: {#x} "
    "ms of a core for the loader's work on a batch ({how}), and every device's own step on {threads}.":
        "所有进程共用{cores}：在 all-reduce 之前，一步至少要用它们的全部计算除以核数：每批加载的工作占一个核 {x} 毫秒（{how}），"
        "加上每台设备自己在{threads}上的一步。",
    "measured": "实测",
    "its workers being busy all the time, which an older probe did not measure": "假定加载进程一直在忙，旧的探测没有测量它",
    "The devices take nothing else from one another (memory, power).": "除此之外设备之间互不争抢（内存、功率）。",
    "An all-reduce moves 2 (N-1)/N x {#b} bytes of gradients per step at {#g} Gbit/s ({how}), round a ring.":
        "一次 all-reduce 每步以 {g} Gbit/s（{how}）沿环传送 2 (N-1)/N × {b} 字节的梯度。",
    "Besides, each message goes over a link of {#g} Gbit/s, as given.": "此外，每条消息还要经过一条 {g} Gbit/s 的链路（给定）。",
    "Where ranks share a core, what each does for the exchange takes as many times as long.":
        "几个 rank 共用一个核时，各自为交换所做的工作就慢几倍。",
    "A ring's {#k} (N-1) messages follow one another, and each takes {#x} ms to start.":
        "环上的 {k} (N-1) 条消息一条接一条，每条的启动用时 {x} 毫秒。",
    "That messages take time to start is not in it.": "消息启动所需的时间没有计入。",
    "Besides, ranks wait {#x} ms for one another, as measured here.": "此外，各 rank 互相等待 {x} 毫秒，在这里测得。",
    "The exchange begins in the backward pass, when the first {#b} bytes are computed: {#x} of a step before that pass "
    "ends.": "交换在反向过程中开始，即最先的 {b} 字节算出时：比反向结束早一步用时的 {x}。",
    "All of it comes after the backward pass: overlap would make it cheaper.": "全部在反向之后：若有重叠会更便宜。",
    "All of it comes after the backward pass, as the gradients fit into the first bucket.":
        "全部在反向之后，因为梯度都放得进第一个桶。",
    "If gradients go {way}, no number of devices is faster than one.": "若梯度{way}传送，任何数量的设备都不比一台快。",
    "If gradients go {way}, {#n} devices are fastest, of {#b} images each: {most}.":
        "若梯度{way}传送，{n} 台设备最快，每台 {b} 张图像：{most}。",
    "round a ring": "沿环",
    "along trees": "沿树",
    "as many as were computed": "这是计算到的最大数量",
    "with more, a step takes longer": "再多，一步反而更长",
    "What this makes of up to {#n} devices was set beside measurements over links of known speed; of more, nothing was.":
        "至多 {n} 台设备的推算曾与已知速度的链路上的实测对照；更多的没有。",
    "measured here between {#n} ranks that train": "在这里测得，{n} 个正在训练的 rank 之间",
    "measured here by an older probe, between two idle ranks: more than ranks that train have":
        "由旧的探测在这里测得，两个空闲的 rank 之间：比正在训练的 rank 所有的要多",
    "as given": "给定",
    "No row shows what one device takes, to adjust this to.": "没有哪一行说明单设备的用时，无从校准。",
    "One device was measured to take {#x} times what this makes of its own step and loader; both are multiplied "
    "by that here.": "测得单设备的用时是这样算出的一步和加载的 {x} 倍；这里两者都乘以它。",

    # ---- figures
    "training loss (nats per image)": "训练损失（每张图像 nat）",
    "test accuracy − the baseline's,": "测试准确率 − 基准的，",
    "same seed (percentage points)": "种子相同（百分点）",
    "seconds of training": "训练秒数",
    "Loss and accuracy": "损失与准确率",
    "{title}; lines: mean over the runs, bands: lowest to highest": "{title}；线：各次运行的平均，带：最低至最高",
    "At the end, no row is further than {#x} points from its baseline ({row})": "最后，没有哪一行与基准相差超过 {x} 个百分点（{row}）",
    "At the end, every row is as accurate as its baseline, within 0.1 points": "最后，各行都与基准同样准确，相差不到 0.1 个百分点",
    "No row is proved to be faster than its baseline": "没有哪一行被证明比基准快",
    "{row} is {#x} times as fast as {base}": "{row}的速度是{base}的 {x} 倍",
    "speed-up over the baseline ({what}; beyond the dashed line is faster)": "相对于基准的加速比（{what}；虚线以外是更快）",
    "whiskers: intervals that all hold the truth in 95 %; across the dashed line: no difference proved":
        "须线：在 95 % 的情况下同时包含真值的区间；跨过虚线：没有证明有差别",
    "peak memory of a device (MiB)": "一台设备的内存峰值 (MiB)",
    "peak memory of a device (MiB); whiskers: lowest and highest of the runs": "一台设备的内存峰值 (MiB)；须线：各次运行的最低与最高",
    "peak memory of a device": "一台设备的内存峰值",
    "No row needs {#n} more or less memory than its baseline": "没有哪一行的内存比基准多或少 {n}",
    "{row} needs {#x} times the memory of {base}": "{row}的内存是{base}的 {x} 倍",
    "whiskers: the row's own 95 % interval": "须线：该行自己的 95 % 区间",
    "No row is proved to be faster than its baseline, or needs {#n} less memory": "没有哪一行被证明比基准快，或内存少 {n}",
    "{row}: {ratio} times as fast as {base}, {words}": "{row}：速度是{base}的 {ratio} 倍，{words}",
    "{row}: {ratio} times as fast as {base},": "{row}：速度是{base}的 {ratio} 倍，",
    "with {#x} times as much memory per device": "每设备内存为 {x} 倍",
    "{row}, batch {#n}": "{row}，批次 {n}",
    "the rest: transfer, forward, backward, update": "其余：传输、前向、反向、更新",
    "whiskers: fastest and slowest epoch": "须线：最快与最慢的一轮",
    "{row} (simulated)": "{row}（模拟）",
    "{row}, measured": "{row}，实测",
    "ideal: in proportion to the devices": "理想：与设备数成正比",
    "speed-up over the baseline": "相对于基准的加速比",
    "milliseconds per step, mean over the epochs without the warm-up": "每步毫秒，各轮（预热除外）的平均",
    "milliseconds per step, mean over the epochs with the warm-up": "每步毫秒，各轮（含预热）的平均",
    "Where a step's time goes": "一步的时间花在哪里",
    "{row} has the longest step: {#x} ms, {#y} of them in the phase {phase}":
        "{row}的一步最长：{x} 毫秒，其中 {y} 毫秒在“{phase}”阶段",
    "milliseconds per step more than an even share of the baseline's": "每步比基准的均摊份额多的毫秒数",
    "orange: each part's interval, all together 95 %; diamond: the difference, with its 95 %":
        "橙色：各部分的区间，同时 95 %；菱形：差及其 95 % 区间",
    "No phase is proved to take longer than an even share of the baseline's": "没有哪个阶段被证明比基准的均摊份额更长",
    "{row}: {#x} ms of the {#y} ms more per step are in the phase {phase}": "{row}：每步多出的 {y} 毫秒中有 {x} 毫秒在“{phase}”阶段",
    "milliseconds; traced steps, which take a little longer than those that are timed": "毫秒；被跟踪的步，比计时的步稍长",
    "What every device does in a step": "一步里每台设备在做什么",
    "In {row}, ranks wait for one another for {#n} of the traced steps": "在{row}里，rank 互相等待占被跟踪的步的 {n}",
    "rank {#n}": "rank {n}",
    "exchange between ranks": "rank 之间的交换",
    "kernels on a GPU": "GPU 上的内核",
    "Faster than {name}: {cases} cases": "比 {name} 快：{cases} 例",
    "{row} in {#n} of {#m}": "{row} {m} 例中 {n} 例",
    "how many times as fast; purple: proved to be faster, orange: proved to be slower, hatched: not proved":
        "快到几倍；紫：证明更快，橙：证明更慢，斜线：没有证明",
}
