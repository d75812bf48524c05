import java.io.FileReader;
import java.io.Reader;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashSet;
import java.util.List;
import javax.script.AbstractScriptEngine;
import javax.script.Bindings;
import javax.script.ScriptContext;
import javax.script.ScriptEngine;
import javax.script.ScriptEngineFactory;
import javax.script.SimpleBindings;
import org.json.simple.JSONArray;
import org.json.simple.JSONObject;
import org.json.simple.parser.JSONParser;

/**
 * Starts SPICE on Java 15 and newer.
 *
 * <p>SPICE lays out its result with the JavaScript engine that came with Java up to 14, and fails
 * without one. The engine below answers to that name and hands the result back as it is.
 *
 * <p>With a cache SPICE keeps what it parsed after every 10,000 captions, twenty minutes of work. So
 * captions are first parsed in parts, each of which is kept.
 */
public class SpiceLauncher {
    private static final int PART = 500;

    public static void main(String[] arguments) throws Exception {
        // Some versions of Java leave this class out of the loader that services are looked up in.
        Thread.currentThread().setContextClassLoader(SpiceLauncher.class.getClassLoader());
        for (int place = 1; place + 1 < arguments.length; place++) {
            if (arguments[place].equals("-cache")) {
                parse(arguments[0], arguments[place + 1]);
            }
        }
        edu.anu.spice.SpiceScorer.main(arguments);
    }

    /** Parses what the cache lacks. */
    private static void parse(String input, String cache) throws Exception {
        LinkedHashSet<String> captions = new LinkedHashSet<>();
        try (Reader reader = new FileReader(input)) {
            for (Object item : (JSONArray) new JSONParser().parse(reader)) {
                for (Object reference : (JSONArray) ((JSONObject) item).get("refs")) {
                    captions.add((String) reference);
                }
                captions.add((String) ((JSONObject) item).get("test"));
            }
        }
        int threads = Runtime.getRuntime().availableProcessors();
        edu.anu.spice.SpiceParser parser = new edu.anu.spice.SpiceParser(cache, threads, true);
        List<String> left = new ArrayList<>(captions);
        for (int start = 0; start < left.size(); start += PART) {
            parser.parseCaptions(left.subList(start, Math.min(start + PART, left.size())));
        }
    }

    /** What Java's service loader makes. */
    public static class Factory implements ScriptEngineFactory {
        @Override
        public ScriptEngine getScriptEngine() {
            return new Unchanged(this);
        }

        @Override
        public List<String> getNames() {
            return Collections.singletonList("JavaScript");
        }

        @Override
        public List<String> getExtensions() {
            return Collections.emptyList();
        }

        @Override
        public List<String> getMimeTypes() {
            return Collections.emptyList();
        }

        @Override
        public String getEngineName() {
            return "unchanged";
        }

        @Override
        public String getEngineVersion() {
            return "1";
        }

        @Override
        public String getLanguageName() {
            return "unchanged";
        }

        @Override
        public String getLanguageVersion() {
            return "1";
        }

        @Override
        public Object getParameter(String key) {
            return null;
        }

        @Override
        public String getMethodCallSyntax(String object, String method, String... arguments) {
            throw new UnsupportedOperationException();
        }

        @Override
        public String getOutputStatement(String text) {
            throw new UnsupportedOperationException();
        }

        @Override
        public String getProgram(String... statements) {
            throw new UnsupportedOperationException();
        }
    }

    /** Takes "jsonString" for "result", whatever the script. */
    private static class Unchanged extends AbstractScriptEngine {
        private final ScriptEngineFactory factory;

        Unchanged(ScriptEngineFactory factory) {
            this.factory = factory;
        }

        @Override
        public Object eval(String script, ScriptContext context) {
            put("result", get("jsonString"));
            return null;
        }

        @Override
        public Object eval(Reader reader, ScriptContext context) {
            return eval("", context);
        }

        @Override
        public Bindings createBindings() {
            return new SimpleBindings();
        }

        @Override
        public ScriptEngineFactory getFactory() {
            return factory;
        }
    }
}
