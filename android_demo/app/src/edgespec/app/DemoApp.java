package edgespec.app;

import android.app.Application;
import java.io.File;

/**
 * What there is once in the app, whatever happens to its screen: Android destroys the Activity when
 * the phone is turned, and this object only together with the process.
 */
public final class DemoApp extends Application {
    Changes changes;
    Conversation conversation;
    ModelFile modelFile;

    @Override
    public void onCreate() {
        super.onCreate();
        getExternalFilesDir(null); // makes the folder that adb push can write a model to
        changes = new Changes();
        conversation = new Conversation(this, changes, new File(getFilesDir(), "conversation"));
        modelFile = new ModelFile(this, changes, new File(getFilesDir(), "model.gguf"));
    }
}
