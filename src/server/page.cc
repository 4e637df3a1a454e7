#include "server/page.h"

#include <string_view>

namespace kvasir {
namespace {

constexpr std::string_view kPage = R"html(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Kvasir</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body{font:16px/1.5 system-ui,sans-serif;max-width:44rem;margin:3rem auto;padding:0 1rem;
color:#1c2430;background:#fafaf7}
h1{margin-bottom:0}table{border-collapse:collapse;margin:1rem 0}td{padding:.25rem 1rem .25rem 0}
td:last-child{font-variant-numeric:tabular-nums;text-align:right}
code{background:#eee;padding:.1rem .3rem;border-radius:3px}
.bar{height:.6rem;background:#ddd;border-radius:.3rem;overflow:hidden}
.bar div{height:100%;background:#3a6;width:0}
@media(prefers-color-scheme:dark){
body{background:#15181d;color:#dde}code{background:#2a2f38}.bar{background:#333}}
</style></head><body>
<h1>Kvasir</h1>
<p>version @VERSION@ serves <code>@MODEL@</code></p>
<p>KV cache: @KV@</p>
<table>
<tr><td>Running</td><td id="running">-</td></tr>
<tr><td>Waiting</td><td id="waiting">-</td></tr>
<tr><td>KV blocks in use</td><td id="blocks">-</td></tr>
<tr><td>Prompt tokens</td><td id="prompt">-</td></tr>
<tr><td>of them found in the cache</td><td id="cached">-</td></tr>
<tr><td>Generated tokens</td><td id="generated">-</td></tr>
<tr><td>Tokens per second, now</td><td id="rate">-</td></tr>
</table>
<div class="bar"><div id="usage"></div></div>
<p>API: <code>POST /v1/chat/completions</code>, <code>POST /v1/completions</code>,
<a href="/v1/models">/v1/models</a>, <a href="/metrics">/metrics</a>, <a href="/health">/health</a>,
<a href="/version">/version</a>. <code>docs/api.md</code> describes them.</p>
<script>
let before=null;
const show=(id,text)=>{document.getElementById(id).textContent=text};
async function tick(){
  try{
    const text=await(await fetch('/metrics')).text();
    const read=(name,label)=>{
      let sum=0,found=false;
      for(const line of text.split('\n')){
        if(!line.startsWith(name+'{')||(label&&!line.includes(label)))continue;
        sum+=Number(line.slice(line.lastIndexOf(' ')+1));found=true;
      }
      return found?sum:NaN;
    };
    const total=read('kvasir_kv_blocks_total'),usage=read('vllm:kv_cache_usage_perc');
    const generated=read('vllm:generation_tokens_total'),now=performance.now();
    show('running',read('vllm:num_requests_running'));
    show('waiting',read('vllm:num_requests_waiting'));
    show('blocks',Math.round(usage*total)+' of '+total);
    show('prompt',read('vllm:prompt_tokens_total'));
    const looked=read('vllm:prefix_cache_queries_total'),hits=read('vllm:prefix_cache_hits_total');
    show('cached',hits+(looked>0?' ('+(100*hits/looked).toFixed(1)+' %)':''));
    show('generated',generated);
    if(before)show('rate',((generated-before.generated)*1000/(now-before.now)).toFixed(1));
    before={generated,now};
    document.getElementById('usage').style.width=(usage*100)+'%';
  }catch(error){show('running','unreachable')}
  setTimeout(tick,1000);
}
tick();
</script></body></html>
)html";

std::string Escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

void Replace(std::string_view mark, const std::string& text, std::string* page) {
  const size_t at = page->find(mark);
  if (at != std::string::npos) page->replace(at, mark.size(), text);
}

}  // namespace

std::string PageHtml(const std::string& model_name, const std::string& version,
                     const std::string& kv) {
  std::string page(kPage);
  Replace("@VERSION@", Escape(version), &page);
  Replace("@KV@", Escape(kv), &page);
  Replace("@MODEL@", Escape(model_name), &page);
  return page;
}

}  // namespace kvasir
