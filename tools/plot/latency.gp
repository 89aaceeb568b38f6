# latency.gp: time per output token of one answer. Carried by every script that `duckd bench` writes.
#
# Behind a head that sets name, title, ttft_ms, mean_ms, decode_tok_s, prompt_tokens, slow_count, fast_count and the data
# blocks $slow (tokens computed by a step) and $fast (accepted drafts), each of lines "index ms".

tokens = slow_count + fast_count + 1
set border 3 lc rgb '#555555'
set tics nomirror out textcolor rgb '#333333'
set grid ytics lc rgb '#e4e4e4' lw 1
set xlabel 'output token' textcolor rgb '#333333'
set xrange [0:(tokens > 10 ? tokens : 10)]
set tmargin 5
set rmargin 3
set key at graph 1, graph 1.13 right bottom horizontal samplen 1 width -3 textcolor rgb '#333333'
set label 1 sprintf('{/:Bold %s}', title) at graph 0, graph 1.15 left textcolor rgb '#111111'
set label 2 sprintf('%d prompt tokens, first token after %.4g ms; then %.4g ms a token, %.4g tokens/s', \
    prompt_tokens, ttft_ms, mean_ms, decode_tok_s) at graph 0, graph 1.07 left textcolor rgb '#555555'

# Slow and fast path are a factor apart: a logarithmic scale shows both. Without drafts a plain one does.
# Room above and below, so that no point sits on the frame.
set style line 1 pt 7 lc rgb '#2066a8'
set style line 2 pt 7 lc rgb '#e07b39'
set style line 3 lc rgb '#888888' dt 2 lw 1.5
stats $slow using 2 nooutput name 'S'
low = S_min
high = S_max
if (fast_count > 0) {
    stats $fast using 2 nooutput name 'F'
    low = F_min < low ? F_min : low
    high = F_max > high ? F_max : high
}
low = low > 1e-3 ? low : 1e-3
if (high / low > 5) {
    set logscale y
    set ytics ()
    do for [e = -3:5] { do for [m in "1 2 5"] {
        set ytics add (sprintf('%g', m * 10.0**e) m * 10.0**e)
    } }
    set yrange [low / 1.6:high * 1.6]
    set ylabel 'time since the token before [ms], log scale' textcolor rgb '#333333'
} else {
    set yrange [0:high * 1.25]
    set ylabel 'time since the token before [ms]' textcolor rgb '#333333'
}

slow_title = fast_count > 0 ? sprintf('step (%d)', slow_count) : sprintf('tokens (%d)', slow_count)
fast_title = sprintf('accepted draft (%d)', fast_count)

# The legend's marks are larger than the points, so they are entries of their own.
do for [kind in "svg png"] {
    size = (kind eq "svg" ? 0.3 : 0.7) * (tokens < 200 ? 1.6 : 1)
    if (kind eq "svg") {
        set terminal svg size 960,480 font 'sans-serif,13' background '#ffffff' enhanced
    } else {
        set terminal pngcairo size 1440,720 font 'sans,16' background '#ffffff' enhanced
    }
    set output name . '.' . kind
    if (fast_count > 0) {
        plot $slow using 1:2 with points ls 1 ps size notitle, $fast using 1:2 with points ls 2 ps size notitle, \
             mean_ms with lines ls 3 notitle, \
             keyentry with points ls 1 ps 2 * size title slow_title, \
             keyentry with points ls 2 ps 2 * size title fast_title, \
             keyentry with lines ls 3 title 'mean'
    } else {
        plot $slow using 1:2 with points ls 1 ps size notitle, mean_ms with lines ls 3 notitle, \
             keyentry with points ls 1 ps 2 * size title slow_title, \
             keyentry with lines ls 3 title 'mean'
    }
}
unset output
