import java.io.Reader;
import java.util.Collections;
import java.util.List;
import javax.script.AbstractScriptEngine;
import javax.script.Bindings;
import javax.script.ScriptContext;
import javax.script.ScriptEngine;
import javax.script.ScriptEngineFactory;
import javax.script.SimpleBindings;

/**
 * Starts SPICE on Java 15 and newer.
 *
 * <p>SPICE lays out its result with the JavaScript engine that came with Java up to 14, and fails
 * without one. The engine below answers to that name and hands the result back as it is.
 */
public class SpiceLauncher {
    public static void main(String[] arguments) {
        // Some versions of Java leave this class out of the loader that services are looked up in.
        Thread.currentThread().setContextClassLoader(SpiceLauncher.class.getClassLoader());
        edu.anu.spice.SpiceScorer.main(arguments);
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
