package android.content;

import java.io.File;
import java.util.HashMap;
import java.util.Map;

/** Preferences that outlive a DemoApp, as they outlive the process. */
final class FakePreferences implements SharedPreferences, SharedPreferences.Editor {
    private static final Map<File, FakePreferences> ALL = new HashMap<>();

    private final Map<String, Object> values = new HashMap<>();

    static FakePreferences of(File file) {
        return ALL.computeIfAbsent(file, key -> new FakePreferences());
    }

    @Override
    public String getString(String key, String otherwise) {
        return (String) values.getOrDefault(key, otherwise);
    }

    @Override
    public boolean getBoolean(String key, boolean otherwise) {
        return (Boolean) values.getOrDefault(key, otherwise);
    }

    @Override public Editor edit() { return this; }

    @Override
    public Editor putString(String key, String value) {
        values.put(key, value);
        return this;
    }

    @Override
    public Editor putBoolean(String key, boolean value) {
        values.put(key, value);
        return this;
    }

    @Override public void apply() {}
}
